"""What everything else stands on: errors, declared settings, files, processes. No models here."""
