//! Every option of every command changes the outcome of an invocation, or is refused by name.
//!
//! The options come from the completion script, which is generated from the definition of the command
//! line. [`ROWS`] says how each is observed. An option without a row fails the test, and so does a row
//! whose option has no effect.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

#[path = "options/invocations.rs"]
mod invocations;

use invocations::Invocations;
use std::{
    collections::BTreeMap,
    process::Command,
    sync::{Mutex, atomic::AtomicUsize, atomic::Ordering},
    thread,
};

/// The invocation of each command that its rows add to.
const BASES: [(&str, &str); 27] = [
    ("chat", "chat --prompt hi --json --max-tokens 6 --seed 1"),
    ("run", "run kvasir-mini hi --json --max-tokens 6 --seed 1"),
    ("models", "models --models-dir ."),
    ("list", "list --models-dir ."),
    ("ps", "ps SERVER --api-key k"),
    ("generate", "generate --prompt 1,2,3,4, --max-tokens 8 --ignore-eos --json"),
    ("logits", "logits MODELS/qwen3 --prompt-ids 1,2,3 --json"),
    ("inspect", "inspect"),
    ("convert", "convert MODELS/qwen3 out.gguf --dtype q8_0"),
    ("doctor", "doctor --quick --port 0 --json"),
    ("bench pp", "bench pp --tokens 8 --reps 1 --json --backend sim"),
    ("bench tg", "bench tg --tokens 4 --reps 1 --json --backend sim"),
    ("bench batch", "bench batch --streams 2 --prompt 8 --tokens 4 --reps 1 --json --backend sim"),
    ("bench spec", "bench spec --spec ngram --file text.txt --tokens 16 --reps 1 --json"),
    ("bench fidelity", "bench fidelity kvasir-mini --tokens 16 --json"),
    ("bench offline", "bench offline --requests 2 --backend sim --json"),
    ("bench serve", "bench serve SERVER --key k --requests 2 --output-tokens 4 --json"),
    ("replay", "replay own.json"),
    ("serve", "serve MODELS/qwen3 --port 0"),
    ("sim", "sim --workload steady --requests 12 --output-tokens 24 --json"),
    ("template", "template --template chat.jinja < chat.json"),
    ("tokenize", "tokenize < text.txt"),
    ("pull", "pull"),
    ("worker", "worker"),
    ("rank", "rank"),
    ("tokenizer", "tokenizer"),
    ("bench broadcast", "bench broadcast --rows 2 --context 20 --reps 3 --json"),
];

/// Commands whose reports hold the resolved configuration.
const REPORTS: &str = "generate logits sim bench-pp bench-tg bench-batch bench-spec bench-offline";
/// Those of them that run several requests.
const SEVERAL: &str = "sim bench-batch bench-spec bench-offline";
/// Commands that start a server, whose configuration is observed where it is refused.
const SERVERS: &str = "chat run serve";
/// Those that run a model on the cpu backend of these.
const BACKENDS: &str = "generate logits bench-spec";
/// Those that run on the simulated device in their base.
const SIMULATED: &str = "bench-pp bench-tg bench-batch bench-offline";

/// Commands that sample an answer.
const SAMPLED: &str = "chat run generate";
/// An invocation whose answer repeats a letter.
const REPEATING: &str = "generate --prompt 1 --regex [ab]{60} --max-tokens 12 --json";

/// Commands, option, and how its effect is observed:
///
/// - `BESIDE | ARGS`: the result with ARGS differs from that without, or ARGS are refused by name.
/// - `A || B`: the results of two whole invocations differ.
/// - `? TEXT | ARGS`: ARGS are refused with TEXT, the name of what they need.
/// - `@ FILE`: a test in this file passes the option.
///
/// The first row that names command and option counts.
#[rustfmt::skip] // a row a line
const ROWS: &[(&str, &str, &str)] = &[
    // The engine.
    ("bench-spec", "chunk-size", "| --chunk-size 128"),
    ("bench-spec", "max-batch-tkv", "| --max-batch-tkv 140000"),
    ("bench-spec", "rules", "| --rules later"),
    ("bench-spec", "interleave", "| --interleave off"),
    ("bench-spec", "max-batch", "| --max-batch 5"),
    ("bench-spec", "pausing", "| --pausing on"),
    ("bench-spec", "long-output-first", "| --long-output-first on"),
    ("sim", "memory-utilization", "| --memory-utilization 0.5"),
    ("sim bench-pp bench-tg bench-batch bench-offline", "overlap", "| --overlap off"),
    ("bench-batch bench-spec", "prefix-cache", "| --prefix-cache on"),
    (REPORTS, "cache", "| --cache paged"),
    (REPORTS, "policy", "| --policy prefill-first"),
    (REPORTS, "kv-capacity", "| --kv-capacity 8192"),
    (REPORTS, "memory-utilization", "| --memory-utilization 0"),
    (REPORTS, "overcommit", "? overcommit | --cache paged --kv-capacity 200000000 --overcommit off"),
    (REPORTS, "state-memory", "? --state-memory 1000000000 needs a model with recurrent layers | --state-memory 1GB"),
    (REPORTS, "state-interval", "? --state-interval 512 needs a model with recurrent layers | --state-interval 512"),
    (REPORTS, "block-size", "--cache paged | --block-size 8"),
    ("generate", "rings", "generate MODELS/qwen2_swa --prompt-ids 5 --max-tokens 2 --json || \
      generate MODELS/qwen2_swa --prompt-ids 5 --max-tokens 2 --json --rings on"),
    (REPORTS, "rings", "| --rings on"),
    (REPORTS, "max-num-batched-tokens", "| --max-num-batched-tokens 64"),
    (REPORTS, "max-model-len", "| --max-model-len 1000"),
    (REPORTS, "chunked-prefill", "--policy prefill-first | --chunked-prefill off"),
    (REPORTS, "long-prefill-cap", "--policy prefill-first | --long-prefill-cap 5"),
    (REPORTS, "chunk-size", "--policy rectangular | --chunk-size 128"),
    (REPORTS, "max-batch-tkv", "--policy rectangular | --max-batch-tkv 140000"),
    (REPORTS, "rules", "--policy rectangular | --rules later"),
    (REPORTS, "overlap", "| --overlap on"),
    (REPORTS, "graph-max-batch", "| --graph-max-batch 8"),
    (REPORTS, "max-extend-tokens", "| --max-extend-tokens 100"),
    (SEVERAL, "order", "| --order fair"),
    (SEVERAL, "prefix-cache", "| --prefix-cache off"),
    (SEVERAL, "max-num-seqs", "| --max-num-seqs 7"),
    (SEVERAL, "delay-factor", "--policy prefill-first | --delay-factor 2"),
    (SEVERAL, "watermark", "| --watermark 0.25"),
    (SEVERAL, "interleave", "--policy rectangular | --interleave off"),
    (SEVERAL, "max-batch", "--policy rectangular | --max-batch 5"),
    (SEVERAL, "pausing", "--policy rectangular | --pausing on"),
    (SEVERAL, "long-output-first", "--policy rectangular --pausing on | --long-output-first on"),
    (SEVERAL, "mixed", "| --mixed on"),
    (SEVERAL, "step-target-ms", "--mixed on | --step-target-ms 5"),
    (SEVERAL, "step-target-times", "--mixed on | --step-target-times 3"),
    (SERVERS, "cache", "--prefix-cache on | --cache cells"),
    (SERVERS, "policy", "--cache cells | --policy rectangular"),
    (SERVERS, "kv-capacity", "| --kv-capacity 0"),
    (SERVERS, "memory-utilization", "| --memory-utilization 2"),
    (SERVERS, "overcommit", "? overcommit | --cache paged --kv-capacity 200000000 --overcommit off"),
    (SERVERS, "state-memory", "? --state-memory 1000000000 needs a model with recurrent layers | --state-memory 1GB"),
    (SERVERS, "state-interval", "? --state-interval 0 needs a model with recurrent layers | --state-interval 0"),
    (SERVERS, "block-size", "| --block-size 257"),
    (SERVERS, "rings", "| --rings on"),
    (SERVERS, "max-num-batched-tokens", "| --max-num-batched-tokens 0"),
    (SERVERS, "max-model-len", "| --max-model-len 1"),
    (SERVERS, "chunked-prefill", "--policy prefill-first --long-prefill-cap 5 | --chunked-prefill off"),
    (SERVERS, "long-prefill-cap", "--policy prefill-first | --long-prefill-cap 0"),
    (SERVERS, "chunk-size", "--policy rectangular | --chunk-size 100"),
    (SERVERS, "max-batch-tkv", "--policy rectangular | --max-batch-tkv 1"),
    (SERVERS, "rules", "| --rules later"),
    (SERVERS, "overlap", "--spec ngram | --overlap on"),
    (SERVERS, "graph-max-batch", "| --graph-max-batch 8"),
    (SERVERS, "max-extend-tokens", "| --max-extend-tokens 0"),
    ("serve", "order", "--max-priority 3 | --order fcfs"),
    (SERVERS, "order", "| --order none"),
    (SERVERS, "prefix-cache", "--cache cells | --prefix-cache on"),
    (SERVERS, "max-num-seqs", "--cache tree | --max-num-seqs 2"),
    (SERVERS, "delay-factor", "--policy prefill-first | --delay-factor -1"),
    (SERVERS, "watermark", "| --watermark 2"),
    (SERVERS, "interleave", "| --interleave off"),
    (SERVERS, "max-batch", "--policy rectangular | --max-batch 0"),
    (SERVERS, "pausing", "--policy rectangular --max-batch 0 | --pausing x"),
    (SERVERS, "long-output-first", "--policy rectangular | --long-output-first on"),
    (SERVERS, "mixed", "--policy prefill-first | --mixed on"),
    (SERVERS, "step-target-ms", "| --step-target-ms 0"),
    (SERVERS, "step-target-times", "| --step-target-times 0"),
    // Model and backend.
    (BACKENDS, "backend", "| --backend plain"),
    (SIMULATED, "backend", "bench tg --tokens 2 --reps 1 --json --backend sim || \
      bench tg --tokens 2 --reps 1 --json --backend plain"),
    (SIMULATED, "threads", "| --threads 1"),
    (SIMULATED, "precision", "| --precision exact"),
    (SIMULATED, "kv-dtype", "| --kv-dtype f16"),
    (SIMULATED, "instructions", "| --instructions portable"),
    (SIMULATED, "sim-preset", "| --sim-preset h200"),
    (SIMULATED, "batch-sizes", "bench tg --tokens 2 --reps 1 --json --backend plain || \
      bench tg --tokens 2 --reps 1 --json --backend plain --batch-sizes 1,2"),
    (SIMULATED, "spec", "| --spec ngram"),
    (SIMULATED, "accept", "? --spec | --accept coupled"),
    ("logits", "precision", "logits kvasir-mini --prompt-ids 1 --json || \
      logits kvasir-mini --prompt-ids 1 --json --precision exact"),
    (BACKENDS, "precision", "| --precision exact"),
    (BACKENDS, "threads", "| --threads 1"),
    (BACKENDS, "kv-dtype", "| --kv-dtype q8_0"),
    ("bench-fidelity", "kv-dtype", "| --kv-dtype q8_0"),
    ("bench-fidelity", "threads", "| --threads 0"),
    ("doctor bench-fidelity", "instructions", "| --instructions portable"),
    (BACKENDS, "instructions", "| --instructions portable"),
    ("bench-spec", "spec", "bench spec --file text.txt --tokens 16 --reps 1 --json --spec ngram || \
      bench spec --file text.txt --tokens 16 --reps 1 --json --spec suffix"),
    ("bench-spec", "accept", "bench spec --file text.txt --tokens 16 --reps 1 --json --spec mtp || \
      bench spec --file text.txt --tokens 16 --reps 1 --json --spec mtp --accept rejection"),
    ("bench-spec", "sim-preset", "| --sim-preset instant"),
    ("doctor", "spec", "| --spec draft:none"),
    ("sim", "spec", "| --spec ngram"),
    (BACKENDS, "spec", "| --spec ngram"),
    (SERVERS, "accept", "? --spec | --accept coupled"),
    (BACKENDS, "accept", "--spec mtp | --accept rejection"),
    (BACKENDS, "batch-sizes", "--backend plain | --batch-sizes 1,2,4"),
    (BACKENDS, "sim-preset", "--backend sim | --sim-preset h200"),
    (SERVERS, "backend", "--kv-dtype f16 | --backend sim"),
    (SERVERS, "precision", "--backend sim | --precision exact"),
    (SERVERS, "threads", "--backend plain | --threads 1"),
    (SERVERS, "kv-dtype", "--backend sim | --kv-dtype f16"),
    (SERVERS, "instructions", "--backend plain | --instructions portable"),
    (SERVERS, "spec", "| --spec eagle3:none"),
    (SERVERS, "batch-sizes", "| --batch-sizes 4"),
    (SERVERS, "sim-preset", "| --sim-preset instant"),
    // generate and logits.
    ("generate", "prompt", "generate --max-tokens 8 --json || generate --max-tokens 8 --json --prompt 1"),
    ("generate logits", "prompt-ids", "generate --max-tokens 8 --json || generate --max-tokens 8 --json --prompt-ids 1"),
    ("generate", "max-tokens", "generate --prompt 1 --json --ignore-eos || \
      generate --prompt 1 --json --ignore-eos --max-tokens 3"),
    ("generate", "ignore-eos", "generate --prompt ? --json --max-tokens 4 || \
      generate --prompt ? --json --max-tokens 4 --ignore-eos"),
    ("generate", "stop", "@ model_commands.rs"),
    ("generate", "temperature", "| --temperature 2"),
    ("generate", "top-k", "--temperature 2 | --top-k 1"),
    ("generate", "top-p", "--temperature 2 | --top-p 0.01"),
    ("generate", "min-p", "--temperature 2 | --min-p 0.99"),
    ("generate", "repetition-penalty", "| --repetition-penalty 9"),
    ("generate", "presence-penalty", "| --presence-penalty 40"),
    ("generate", "frequency-penalty", "| --frequency-penalty 40"),
    ("generate", "seed", "--temperature 2 | --seed 5"),
    ("generate", "logprobs", "| --logprobs 2"),
    (SAMPLED, "samplers", "--temperature 5 --top-k 1 | --samplers temperature"),
    (SAMPLED, "typical-p", "--temperature 5 | --typical-p 0.01"),
    (SAMPLED, "top-n-sigma", "--temperature 5 | --top-n-sigma 0.01"),
    (SAMPLED, "xtc-probability", "--temperature 1 --xtc-threshold 0.001 | --xtc-probability 1"),
    (SAMPLED, "xtc-threshold", "--temperature 1 --xtc-probability 1 | --xtc-threshold 0.001"),
    (SAMPLED, "dynatemp-range", "--temperature 5 | --dynatemp-range 4.9"),
    (SAMPLED, "dynatemp-exponent", "--temperature 5 --dynatemp-range 4.9 | --dynatemp-exponent 20"),
    (SAMPLED, "mirostat", "--temperature 5 --mirostat-tau 0.1 | --mirostat 2"),
    (SAMPLED, "mirostat-tau", "--temperature 5 --mirostat 2 | --mirostat-tau 0.01"),
    (SAMPLED, "mirostat-eta", "--temperature 5 --mirostat 2 --mirostat-tau 0.1 | --mirostat-eta 1000"),
    (SAMPLED, "min-keep", "--temperature 5 --top-p 0.01 | --min-keep 500"),
    ("generate", "repeat-last-n", "--repetition-penalty 9 | --repeat-last-n 0"),
    ("generate", "dry-multiplier", "REPEATING || REPEATING --dry-multiplier 100"),
    ("generate", "dry-base", "REPEATING --dry-multiplier 0.0001 || \
      REPEATING --dry-multiplier 0.0001 --dry-base 1000"),
    ("generate", "dry-allowed-length", "REPEATING --dry-multiplier 100 || \
      REPEATING --dry-multiplier 100 --dry-allowed-length 60"),
    ("generate", "dry-penalty-last-n", "REPEATING --dry-multiplier 100 || \
      REPEATING --dry-multiplier 100 --dry-penalty-last-n 0"),
    ("generate", "dry-sequence-breaker", "REPEATING --dry-multiplier 100 || \
      REPEATING --dry-multiplier 100 --dry-sequence-breaker b"),
    ("chat run", "repeat-last-n", "| --repeat-last-n x"),
    ("chat run", "dry-multiplier", "| --dry-multiplier x"),
    ("chat run", "dry-base", "| --dry-base x"),
    ("chat run", "dry-allowed-length", "| --dry-allowed-length x"),
    ("chat run", "dry-penalty-last-n", "| --dry-penalty-last-n x"),
    ("chat run", "dry-sequence-breaker", "| --dry-sequence-breaker="),
    ("generate", "json-schema", "| --json-schema none.json"),
    ("generate", "regex", "generate --prompt 1 --max-tokens 6 --json || \
      generate --prompt 1 --max-tokens 6 --json --regex x+"),
    ("generate", "grammar", "| --grammar none.lark"),
    ("generate", "spec-trace", "--spec ngram | --spec-trace"),
    ("generate", "json", "generate --prompt 1 --max-tokens 2 || generate --prompt 1 --max-tokens 2 --json"),
    ("logits", "all", "| --all"),
    ("logits", "json", "logits MODELS/qwen3 --prompt-ids 1 || logits MODELS/qwen3 --prompt-ids 1 --json"),
    // chat and run.
    ("chat run", "prompt", "chat --json || chat --json --prompt hi --max-tokens 3"),
    ("chat run", "json", "chat --prompt hi --seed 1 --max-tokens 3 || \
      chat --prompt hi --seed 1 --max-tokens 3 --json"),
    ("chat run", "max-tokens", "chat --prompt hi --seed 1 --json || \
      chat --prompt hi --seed 1 --json --max-tokens 1"),
    ("chat run", "seed", "chat --prompt hi --temperature 2 --max-tokens 9 --json --seed 1 || \
      chat --prompt hi --temperature 2 --max-tokens 9 --json --seed 2"),
    ("chat run", "system", "| --system Say"),
    ("chat run", "temperature", "| --temperature 2"),
    ("chat run", "top-p", "--temperature 2 | --top-p 0.01"),
    ("chat run", "top-k", "--temperature 5 | --top-k 1"),
    ("chat run", "min-p", "--temperature 5 | --min-p 0.99"),
    ("chat run", "repetition-penalty", "| --repetition-penalty x"),
    ("chat run", "tools", "| --tools none.json"),
    ("chat run", "history", "| --history maybe"),
    ("chat run", "edit-mode", "| --edit-mode ed"),
    ("chat run", "context-shift", "| --context-shift maybe"),
    ("chat run", "constrain-tool-calls", "| --constrain-tool-calls maybe"),
    (SERVERS, "generation-config", "| --generation-config none.json"),
    (SERVERS, "chat-template", "| --chat-template none.jinja"),
    (SERVERS, "chat-template-kwargs", "| --chat-template-kwargs 5"),
    (SERVERS, "tool-parser", "| --tool-parser none"),
    (SERVERS, "reasoning-parser", "| --reasoning-parser any"),
    // serve.
    ("serve", "constrain-tool-calls", "@ serve/tool_calls.rs"),
    ("serve", "context-shift", "@ serve/full_context.rs"),
    ("serve", "max-priority", "? --order priority | --max-priority 3"),
    ("serve", "max-connections-per-peer", "| --max-connections-per-peer 0"),
    ("worker", "directory", "? --replica | --directory ."),
    ("worker", "replica", "? --directory | --replica 0"),
    ("worker", "generation", "? --directory | --generation 0"),
    ("rank", "rank", "? --replica | --rank 1"),
    ("rank", "replica", "? --rank | --replica 0"),
    ("rank", "packed-weights", "@ serve/ranks.rs"),
    ("worker", "packed-weights", "@ serve/ranks.rs"),
    ("worker", "experts-memory", "@ serve/experts.rs"),
    ("tokenizer", "tokenizer", "? --generation | --tokenizer 0"),
    ("tokenizer", "generation", "? --tokenizer | --generation 0"),
    ("serve", "tokenizer-processes", "@ serve/tokenizers.rs"),
    ("serve", "dp", "@ serve/fleet.rs"),
    ("serve", "tp", "@ serve/ranks.rs"),
    ("serve", "rank-control", "? --tp | --rank-control requests"),
    ("serve", "ep", "? --dp | --ep on"),
    ("serve", "prefill-coalescing", "? --ep on | --prefill-coalescing on"),
    ("serve", "route", "? --dp | --route prefix"),
    ("serve", "role", "? --dp | --role prefill,decode"),
    ("serve", "open-health", "| --open-health=no"),
    ("serve", "allow-pull", "@ hub/served.rs"),
    ("serve", "step-timeout", "| --step-timeout 0"),
    ("serve", "temperature", "| --temperature 101"),
    ("serve", "top-k", "| --top-k -1"),
    ("serve", "top-p", "| --top-p 1.5"),
    ("serve", "min-p", "| --min-p 2"),
    ("serve", "repetition-penalty", "| --repetition-penalty 0"),
    ("serve", "presence-penalty", "| --presence-penalty 3"),
    ("serve", "frequency-penalty", "| --frequency-penalty 3"),
    ("serve", "seed", "| --seed x"),
    ("serve", "slot-save-path", "@ serve/slots.rs"),
    ("serve", "*", "@"),
    // sim and bench serve.
    ("sim", "workload", "sim --json || sim --workload steady --requests 2 --json"),
    ("sim", "requests", "sim --workload steady --json || sim --workload steady --json --requests 2"),
    ("sim", "rate", "| --rate 3"),
    ("sim", "burstiness", "--rate 3 | --burstiness 0.2"),
    ("sim", "prompt-tokens", "| --prompt-tokens 40"),
    ("sim", "output-tokens", "sim --workload steady --requests 2 --json || \
      sim --workload steady --requests 2 --json --output-tokens 9"),
    ("sim", "shared-prefix", "| --shared-prefix 64"),
    ("sim", "seed", "--rate 3 | --seed 4"),
    ("sim", "repetition", "--spec ngram | --repetition 0.8"),
    ("sim", "acceptance", "--spec mtp --acceptance 0.9 || --spec mtp --acceptance 0.1"),
    ("sim", "replicas", "| --replicas 3"),
    ("sim", "route", "--replicas 3 | --route round-robin"),
    ("sim", "roles", "--replicas 3 | --roles 1:2"),
    ("sim", "tp", "| --tp 2"),
    ("sim", "links", "--tp 2 | --links ranks=1e9:1e-4"),
    ("sim", "failures", "--replicas 2 | --failures mtbf=0.001,restart=0.001"),
    ("sim", "faults", "| --faults failed=300"),
    ("sim", "sim-preset", "| --sim-preset cpu2-amx"),
    ("sim", "machine", "| --machine board.toml"),
    ("sim", "html", "| --html out.html"),
    ("sim", "html-steps", "--html out.html | --html-steps 1..3"),
    ("sim", "trace", "| --trace out.jsonl"),
    ("sim", "json", "sim --workload steady --requests 2 || sim --workload steady --requests 2 --json"),
    // The other benchmarks.
    ("bench-serve", "workload", "| --workload chat"),
    ("bench-serve", "requests", "bench serve SERVER --key k --output-tokens 4 --json --requests 1 || \
      bench serve SERVER --key k --output-tokens 4 --json --requests 2"),
    ("bench-serve", "rate", "| --rate 0"),
    ("bench-serve", "burstiness", "| --burstiness 0"),
    ("bench-serve", "prompt-tokens", "| --prompt-tokens 40"),
    ("bench-serve", "output-tokens", "bench serve SERVER --key k --requests 2 --json --output-tokens 4 || \
      bench serve SERVER --key k --requests 2 --json --output-tokens 5"),
    ("bench-serve", "shared-prefix", "| --shared-prefix 600"),
    ("bench-serve", "seed", "--workload poisson | --seed 9"),
    ("bench-serve", "scenario", "bench serve SERVER --key k --json || \
      bench serve SERVER --key k --json --scenario none.json"),
    ("bench-serve", "concurrency", "| --concurrency 0"),
    ("bench-serve", "route", "| --route ids"),
    ("bench-serve", "max-model-len", "--workload poisson | --max-model-len 100"),
    ("bench-serve", "model-name", "| --model-name other"),
    ("bench-serve", "key", "bench serve SERVER --requests 2 --json || \
      bench serve SERVER --requests 2 --json --key k"),
    ("bench-serve", "ca", "bench serve https://127.0.0.1:9 --json || \
      bench serve https://127.0.0.1:9 --json --ca none.pem"),
    ("bench-serve", "keep-eos", "| --keep-eos"),
    ("bench-serve", "extra", "| --extra 5"),
    ("bench-serve", "goodput", "| --goodput ttft:1"),
    ("bench-serve", "timeout", "| --timeout 0"),
    ("bench-serve", "html", "| --html out.html"),
    ("bench-serve", "json", "bench serve SERVER --key k --requests 2 || \
      bench serve SERVER --key k --requests 2 --json"),
    ("bench-pp bench-tg bench-batch bench-spec", "reps", "| --reps 0"),
    ("bench-pp", "tokens", "bench pp --reps 1 --json --backend sim --tokens 3 || \
      bench pp --reps 1 --json --backend sim --tokens 4"),
    ("bench-tg", "tokens", "bench tg --reps 1 --json --backend sim --tokens 3 || \
      bench tg --reps 1 --json --backend sim --tokens 4"),
    ("bench-tg", "depth", "| --depth 5"),
    ("bench-batch", "streams", "bench batch --streams 2 --prompt 8 --tokens 4 --reps 1 --json --backend sim || \
      bench batch --streams 3 --prompt 8 --tokens 4 --reps 1 --json --backend sim"),
    ("bench-batch", "shared", "| --shared 32"),
    ("bench-batch", "prompt", "bench batch --streams 2 --prompt 8 --tokens 4 --reps 1 --json --backend sim || \
      bench batch --streams 2 --prompt 9 --tokens 4 --reps 1 --json --backend sim"),
    ("bench-batch", "tokens", "bench batch --streams 2 --prompt 8 --tokens 4 --reps 1 --json --backend sim || \
      bench batch --streams 2 --prompt 8 --tokens 5 --reps 1 --json --backend sim"),
    ("bench-spec", "task", "| --task random"),
    ("bench-spec", "file", "bench spec --spec ngram --json || \
      bench spec --spec ngram --json --file text.txt --tokens 16 --reps 1"),
    ("bench-spec", "tokens", "bench spec --spec ngram --file text.txt --reps 1 --json --tokens 16 || \
      bench spec --spec ngram --file text.txt --reps 1 --json --tokens 17"),
    ("bench-spec", "streams", "| --streams 2"),
    ("bench-pp bench-tg bench-batch bench-spec", "shape", "? --dtype | --shape qwen3-0.6b"),
    ("bench-pp bench-tg bench-batch bench-spec", "dtype", "? --shape | --dtype q8_0"),
    ("bench-pp bench-tg bench-batch bench-spec", "json", "bench pp --backend sim --reps 1 --tokens 2 || \
      bench pp --backend sim --reps 1 --tokens 2 --json"),
    ("bench-broadcast", "rows", "bench broadcast --rows 2 --reps 3 --json || bench broadcast --rows 3 --reps 3 --json"),
    ("bench-broadcast", "context", "bench broadcast --context 20 --reps 3 --json || \
      bench broadcast --context 40 --reps 3 --json"),
    ("bench-broadcast", "reps", "bench broadcast --reps 3 --json || bench broadcast --reps 4 --json"),
    ("bench-broadcast", "json", "bench broadcast --reps 3 || bench broadcast --reps 3 --json"),
    ("bench-fidelity", "file", "| --file none.txt"),
    ("bench-fidelity", "tokens", "bench fidelity kvasir-mini --json --tokens 9 || \
      bench fidelity kvasir-mini --json --tokens 10"),
    ("bench-fidelity", "layers", "| --layers"),
    ("bench-fidelity", "json", "bench fidelity kvasir-mini --tokens 9 || \
      bench fidelity kvasir-mini --tokens 9 --json"),
    ("bench-offline", "requests", "bench offline --backend sim --json --requests 1 || \
      bench offline --backend sim --json --requests 2"),
    ("bench-offline", "html", "| --html out.html"),
    ("bench-offline", "json", "bench offline --backend sim --requests 1 || \
      bench offline --backend sim --requests 1 --json"),
    // The rest.
    ("models list", "models-dir", "models --models-dir . || models --models-dir MODELS"),
    ("models list inspect", "json", "| --json"),
    ("ps", "api-key", "ps SERVER || ps SERVER --api-key k"),
    ("ps", "json", "| --json"),
    ("convert", "dtype", "convert MODELS/qwen3 out.gguf || convert MODELS/qwen3 out.gguf --dtype q8_0"),
    ("convert", "rule", "| --rule x"),
    ("doctor", "host", "| --host no.invalid"),
    ("doctor", "port", "| --port x"),
    ("doctor", "quick", "@ serve/doctor.rs"),
    ("doctor", "json", "doctor --quick --port 0 || doctor --quick --port 0 --json"),
    ("replay", "case", "| --case none"),
    ("replay", "json", "| --json"),
    ("template", "template", "| --template none.jinja"),
    ("template", "json", "template < chat.json || template < chats.json --json"),
    ("tokenize", "add-special", "tokenize special.json < text.txt || \
      tokenize special.json < text.txt --add-special"),
    ("tokenize", "json", "tokenize < list.json || tokenize < list.json --json"),
];

/// Options of all commands; other tests cover them.
const GLOBAL: [&str; 4] = ["config", "print-config", "help", "version"];

/// Listed options by command.
fn listed() -> BTreeMap<String, Vec<String>> {
    let output = Command::new(env!("CARGO_BIN_EXE_kvasir")).args(["completions", "fish"]).output().unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in script.lines() {
        let Some((_, rest)) = line.split_once("__fish_kvasir_using_subcommand ") else { continue };
        let Some((condition, rest)) = rest.split_once('"') else { continue };
        let mut words = condition.split([' ', ';']).filter(|word| !word.is_empty());
        let mut command = words.next().unwrap().to_owned();
        if let (Some("__fish_seen_subcommand_from"), Some(sub)) = (words.nth(1), words.next()) {
            command = format!("{command} {sub}");
        }
        let mut flags = rest.split(" -l ").skip(1).filter_map(|flag| flag.split_whitespace().next());
        if let Some(flag) = flags.next().filter(|flag| !GLOBAL.contains(flag)) {
            all.entry(command).or_default().push(flag.to_owned());
        }
    }
    all
}

#[test]
fn every_option_has_an_effect_or_is_refused_by_name() {
    let invocations = Invocations::new("options");
    let all = listed();
    let pairs: Vec<(&str, &str)> =
        all.iter().flat_map(|(command, options)| options.iter().map(|one| (&**command, &**one))).collect();
    assert!(pairs.len() > 400, "only {} options are listed", pairs.len());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some((command, option)) = pairs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(why) = invocations.check_option(command, option) {
                        failures.lock().unwrap().push(format!("{command} --{option}: {why}"));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().unwrap();
    failures.sort();
    assert!(failures.is_empty(), "{} of {} options:\n{}", failures.len(), pairs.len(), failures.join("\n"));
}

/// Equal invocations give equal outcomes, or any option would seem to have an effect.
#[test]
fn equal_invocations_have_equal_outcomes() {
    let invocations = Invocations::new("options-equal");
    for (command, base) in BASES.iter().filter(|(command, _)| *command != "serve") {
        assert_eq!(invocations.run(base), invocations.run(base), "{command}");
    }
}
