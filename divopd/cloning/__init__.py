"""How the small checkpoints in models/ are made: tokenizer, demonstrations, behaviour cloning, DAgger."""
