//! Table of options of llama.cpp, vLLM, SGLang and Ollama with their equivalents in Kvasir.

/// Equivalent of an option of another engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Meaning {
    /// One of these options, the first that the command has.
    Same(&'static [&'static str]),
    /// The argument MODEL.
    Model,
    /// No equivalent: the reason, and what to type instead.
    Instead(&'static str),
}

/// An option of another engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignOption {
    /// Its spellings, with dashes.
    pub(crate) names: &'static [&'static str],
    pub(crate) meaning: Meaning,
    /// Values that request a default of Kvasir, each with the reason for its refusal.
    pub(crate) defaults: &'static [(&'static str, &'static str)],
}

const fn same(names: &'static [&'static str], ours: &'static [&'static str]) -> ForeignOption {
    ForeignOption { names, meaning: Meaning::Same(ours), defaults: &[] }
}

const fn instead(names: &'static [&'static str], why: &'static str) -> ForeignOption {
    ForeignOption { names, meaning: Meaning::Instead(why), defaults: &[] }
}

const UNLIMITED: &str = "answers of chat and serve end at the model's length by default; leave it out";
const OF_MODEL: &str = "the model's length is the default; leave it out";
const NO_GPU: &str = "there is no GPU backend yet, models run on the CPU; leave it out";
const ONE_PROCESS: &str = "one process uses all cores of the machine (--threads N); leave it out";
const DETECTED: &str = "the type is read from the model's files; leave it out, or make another by `kvasir convert MODEL OUT --dtype TYPE`";
const ALWAYS: &str = "always on; leave it out";
const OF_CONFIG: &str = "read from the model's files; leave it out";

/// The options, by subject.
pub(crate) const OPTIONS: &[ForeignOption] = &[
    // The model.
    ForeignOption {
        names: &["-m", "--model", "--model-path", "-hf", "-hfr", "--hf-repo"],
        meaning: Meaning::Model,
        defaults: &[],
    },
    instead(&["-hff", "--hf-file"], "add the file's type to the hub name: OWNER/NAME-GGUF:Q4_K_M"),
    instead(&["-mu", "--model-url"], "fetch the file first, or give its hub name: OWNER/NAME-GGUF:Q4_K_M"),
    instead(&["-hft", "--hf-token"], "set the variable HF_TOKEN"),
    instead(&["--revision"], "add it to the hub name: OWNER/NAME@REVISION"),
    instead(&["--download-dir"], "set the variable HF_HUB_CACHE"),
    instead(
        &["--tokenizer", "--tokenizer-path", "--tokenizer-mode"],
        "the model's own is used; leave it out",
    ),
    instead(&["--trust-remote-code"], "no code of a model's repository is run; leave it out"),
    instead(&["--load-format"], "the format is detected from the files; leave it out"),
    instead(
        &["--task", "--runner", "--convert", "--pooling"],
        "one server has the routes of chats and of embeddings; leave it out",
    ),
    instead(&["--limit-mm-per-prompt", "--mm-processor-kwargs"], "images are not supported; leave it out"),
    instead(
        &["--override-generation-config", "--hf-overrides"],
        "requests carry sampling parameters, and --generation-config none drops those of the model",
    ),
    instead(&["--dtype", "--quantization", "-q"], DETECTED),
    instead(&["-mm", "--mmproj"], "images are not supported; leave it out for text"),
    instead(
        &["--lora", "--enable-lora", "--lora-modules"],
        "LoRA adapters are not supported; merge it into the model",
    ),
    same(&["-a", "--alias", "--served-model-name"], &["model-name"]),
    // Length and memory.
    ForeignOption {
        names: &["-c", "--ctx-size", "--context-length"],
        meaning: Meaning::Same(&["max-model-len"]),
        defaults: &[("0", OF_MODEL)],
    },
    same(&["-np", "--parallel", "--max-running-requests"], &["max-num-seqs"]),
    same(&["-b", "--batch-size"], &["max-num-batched-tokens"]),
    instead(&["-ub", "--ubatch-size"], "--max-num-batched-tokens N limits the tokens of a step"),
    instead(
        &["--gpu-memory-utilization", "--mem-fraction-static"],
        "--memory-utilization F is the share of the memory beside the weights that the KV cache gets",
    ),
    ForeignOption {
        names: &["--kv-cache-dtype"],
        meaning: Meaning::Same(&["kv-dtype"]),
        defaults: &[("auto", "the type follows from the model's type; leave it out")],
    },
    instead(
        &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"],
        "--kv-dtype TYPE is the type of K and V, such as q8_0",
    ),
    same(&["--page-size"], &["block-size"]),
    instead(&["--swap-space", "--cpu-offload-gb"], "all memory is that of the CPU; leave it out"),
    instead(
        &["--mlock"],
        "weights are packed into memory of their own, and the file's pages are released; leave it out",
    ),
    instead(
        &["--no-mmap", "--mmap"],
        "files are always mapped, and their pages released once packed; leave it out",
    ),
    // The machine.
    same(&["-t", "--threads"], &["threads"]),
    instead(&["-tb", "--threads-batch"], "--threads N sets the threads of prefill and decode"),
    instead(
        &[
            "-ngl",
            "--n-gpu-layers",
            "--gpu-layers",
            "-dev",
            "--device",
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
        ],
        NO_GPU,
    ),
    instead(&["-mg", "--main-gpu", "-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe", "--enforce-eager"], NO_GPU),
    instead(&["--distributed-executor-backend", "--nnodes", "--dist-init-addr", "--rpc"], ONE_PROCESS),
    instead(
        &[
            "--compilation-config",
            "--max-seq-len-to-capture",
            "--cuda-graph-sizes",
            "--no-kv-offload",
            "-nkvo",
        ],
        NO_GPU,
    ),
    instead(&["--async-scheduling"], "--overlap on schedules a step while the previous one runs"),
    same(&["-tp", "--tp-size", "--tensor-parallel-size"], &["tp"]),
    instead(
        &["--enable-expert-parallel", "--enable-ep"],
        "--dp N --ep on divides the experts among N engines",
    ),
    same(&["-dp", "--dp-size", "--data-parallel-size"], &["dp"]),
    instead(&["-pp", "--pipeline-parallel-size"], ONE_PROCESS),
    instead(&["--numa"], "memory is placed by the threads that use it; leave it out"),
    instead(&["-fa", "--flash-attn", "-cb", "--cont-batching", "--jinja", "--attention-backend"], ALWAYS),
    instead(&["--no-warmup", "--warmup"], "serve always warms up before it listens; leave it out"),
    instead(&["--rope-scaling", "--rope-freq-base", "--rope-freq-scale", "--rope-scale"], OF_CONFIG),
    // Prompts and answers.
    same(&["-p"], &["prompt"]),
    instead(
        &["--url", "--base-url"],
        "kvasir chat runs a model itself; the page of a server is at its address",
    ),
    instead(
        &["--kv-transfer-config"],
        "--dp N --role prefill,decode runs prefill and decode in different engines",
    ),
    instead(&["-f", "--file"], "pass the text on stdin: kvasir run MODEL 'Sum up:' < FILE"),
    ForeignOption {
        names: &["-n", "--predict", "--n-predict", "--num-predict"],
        meaning: Meaning::Same(&["max-tokens", "tokens"]),
        defaults: &[("-1", UNLIMITED), ("-2", UNLIMITED)],
    },
    same(&["-sys", "--system-prompt"], &["system"]),
    same(&["--temp"], &["temperature"]),
    same(&["-s"], &["seed"]),
    instead(&["--keep"], "requests carry `n_keep`, with --context-shift on"),
    same(&["--repeat-penalty"], &["repetition-penalty"]),
    same(&["--repeat-last-n"], &["repeat-last-n"]),
    same(&["--typical"], &["typical-p"]),
    same(&["--top-nsigma"], &["top-n-sigma"]),
    same(&["--dynatemp-exp"], &["dynatemp-exponent"]),
    same(&["--mirostat-ent"], &["mirostat-tau"]),
    same(&["--mirostat-lr"], &["mirostat-eta"]),
    same(&["--sampling-seq", "--sampler-seq"], &["samplers"]),
    instead(
        &["-cnv", "--conversation", "-i", "--interactive"],
        "kvasir chat MODEL is a conversation; leave it out",
    ),
    instead(
        &["-no-cnv", "--no-conversation"],
        "kvasir generate MODEL --prompt TEXT completes a text without a template",
    ),
    instead(&["-st", "--single-turn"], "kvasir run MODEL TEXT answers one question"),
    instead(&["-r", "--reverse-prompt"], "in a chat: /set stop TEXT; in requests: stop"),
    instead(
        &["-e", "--escape", "--color", "--simple-io", "--nowordwrap"],
        "leave it out: the terminal decides",
    ),
    instead(
        &["--verbose-prompt", "--no-display-prompt"],
        "`kvasir tokenize` prints a prompt's tokens; leave it out",
    ),
    same(&["--chat-template-file"], &["chat-template"]),
    same(&["--grammar-file"], &["grammar"]),
    same(&["-j", "-jf", "--json-schema-file"], &["json-schema"]),
    instead(&["--format"], "kvasir generate has --json-schema FILE; requests have response_format or format"),
    instead(&["--think", "--hidethinking"], "in a chat: /set enable_thinking false"),
    instead(&["--keepalive"], "a model stays loaded as long as its server runs; leave it out"),
    instead(
        &["-v", "--verbose", "-lv", "--log-verbosity"],
        "kvasir serve has --log-level debug; a chat prints its speed",
    ),
    // Scheduling and speculation.
    same(&["--scheduling-policy", "--schedule-policy"], &["order"]),
    instead(&["--enable-prefix-caching", "--cache-prompt"], "--prefix-cache on is the default; leave it out"),
    instead(
        &["--no-enable-prefix-caching", "--disable-radix-cache", "--no-cache-prompt"],
        "--prefix-cache off",
    ),
    instead(&["--enable-chunked-prefill"], "--policy chunked is the default; leave it out"),
    instead(&["--chunked-prefill-size"], "--max-extend-tokens N limits the prompt tokens of a step"),
    instead(
        &["-md", "--model-draft", "--speculative-config", "--speculative-model", "--speculative-algorithm"],
        "--spec draft:MODEL drafts with another model, --spec ngram with the text itself",
    ),
    // The server.
    same(&["--ssl-certfile", "--ssl-cert-file"], &["tls-cert"]),
    same(&["--ssl-keyfile", "--ssl-key-file"], &["tls-key"]),
    same(&["--otlp-traces-endpoint"], &["otlp-endpoint"]),
    same(&["--tool-call-parser"], &["tool-parser"]),
    instead(
        &[
            "--enable-auto-tool-choice",
            "--metrics",
            "--props",
            "--embedding",
            "--embeddings",
            "--slots",
            "--reranking",
        ],
        ALWAYS,
    ),
    instead(
        &["--no-webui", "--no-slots", "--no-ui"],
        "the page and all routes are always served; leave it out",
    ),
    instead(&["--reasoning-format"], "--reasoning-parser NAME; requests choose with include_reasoning"),
    instead(
        &["--cache-reuse", "--swa-full", "-kvu", "--kv-unified"],
        "one pool holds the K and V of all requests; leave it out",
    ),
    instead(
        &["--root-path", "--api-prefix", "--path", "--middleware"],
        "a proxy in front of the server adds it",
    ),
    instead(&["--response-role", "--threads-http", "--log-disable", "--no-perf", "--perf"], "leave it out"),
    instead(&["--guided-decoding-backend", "--grammar-backend"], "there is one backend; leave it out"),
    instead(&["--uvicorn-log-level"], "--log-level LEVEL"),
    instead(
        &["--disable-log-requests", "--no-enable-log-requests", "--disable-log-stats"],
        "--log-level warn",
    ),
    instead(&["--max-logprobs"], "requests get up to 100; leave it out"),
    // An address at a command that serves nothing.
    instead(&["--port", "--host", "--api-key"], "kvasir serve has it; `kvasir chat` needs no server"),
];
