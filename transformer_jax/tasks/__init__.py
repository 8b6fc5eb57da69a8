"""Tasks: functions from data, a model's configuration and a tokenizer to what a Trainer trains."""
