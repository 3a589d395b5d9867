//! Files that hold models: safetensors, GGUF, configs, tokenizers, chat templates. None of them is trusted.
