"""Detection of secrets in text: rules, one scan over all of them, and redaction."""
