"""From rows of the input to token ids: templates rendered, messages and text tokenised, a model's files found.

Knows the job, its sources and a tokenizer; knows no engine, no Ray and nothing of what is committed.
"""
