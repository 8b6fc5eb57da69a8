"""Metrics: classification, correlation, question answering, translation, few-shot evaluation."""
