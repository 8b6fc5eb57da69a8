"""Recordings and their texts: features of waveforms, and batches of both."""
