"""What looks like a secret in text: rules, one scan over all of them, and what is put in a secret's place."""
