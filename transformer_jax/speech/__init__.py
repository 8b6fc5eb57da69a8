"""Speech: recordings and their texts, features of waveforms, transcription."""
