//! `kvasir generate`: completes one prompt and streams the text, or prints one JSON object.

use crate::io::failure::Failure;
use crate::io::model_progress::{loading, reading};
use crate::options::SequenceOptions;
use crate::options::model::ModelArgs;
use crate::options::resolve::setup_of;
use crate::options::rules::rule;
use crate::options::samplers::SamplerArgs;
use crate::options::structured_output::FormArgs;
use kvasir::{Answer, DraftRound, Finish, Kvasir, Model, Params, Piece, Prompt, Sampling, Token};
use kvasir_exec::TokenLogprobs;
use serde_json::{Value as Json, json};
use std::{
    io::Write,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

/// Hint for a chat model that was prompted without its template.
const NOTHING: &str = "the model ended at once. It got the prompt as it stands, without the template of a chat; `kvasir chat` asks questions";

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt text; the tokenizer adds its special tokens
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Prompt as token ids, used verbatim
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with = "prompt")]
    prompt_ids: Vec<Token>,
    /// Maximum tokens to generate
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Text that ends the output, which is cut before it; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    stop: Vec<String>,
    /// Do not stop at an end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    samplers: SamplerArgs,
    /// With --json: log-probabilities of each sampled token and of the K most likely ones
    #[arg(long, value_name = "K", requires = "json", value_parser = clap::value_parser!(u32).range(0..=100))]
    logprobs: Option<u32>,
    #[command(flatten)]
    form: FormArgs,
    #[command(flatten)]
    options: SequenceOptions,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// With --json and --spec: every round of drafts
    #[arg(long, requires = "json", requires = "spec")]
    spec_trace: bool,
}

#[derive(clap::Args)]
struct SamplingArgs {
    /// Sampling temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Top-k sampling; 0 keeps all tokens
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Nucleus sampling: cumulative probability that is kept
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Minimum probability, relative to the most likely token
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Repetition penalty; above 1 makes tokens that occurred less likely
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Presence penalty: subtracted once from the logits of generated tokens
    #[arg(long, default_value_t = 0.0)]
    presence_penalty: f32,
    /// Frequency penalty: subtracted per occurrence from the logits of generated tokens
    #[arg(long, default_value_t = 0.0)]
    frequency_penalty: f32,
    /// Sampling seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Args {
    /// Model and backend options.
    pub(crate) fn model(&self) -> &ModelArgs {
        &self.model
    }

    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        if self.prompt.is_none() && self.prompt_ids.is_empty() {
            return Err(Failure::usage("generate needs a prompt: --prompt TEXT or --prompt-ids IDS"));
        }
        rule(!self.model.compute().is_simulated() || self.logprobs.is_none(), || {
            "--logprobs cannot be combined with --backend sim: it computes no probabilities".into()
        })?;
        let started = Instant::now();
        let model = self.load()?;
        let loaded = started.elapsed();
        let prompt = match &self.prompt {
            Some(text) => Prompt::from(text.as_str()),
            None => Prompt::from(self.prompt_ids.as_slice()),
        };
        let prompt = model.ids(prompt, true)?;
        let resolved =
            self.options.resolve(&model.loaded, prompt.len().saturating_add(self.max_tokens as usize))?;
        let (core, overlap) = (resolved.core()?, resolved.overlap);
        let setup = setup_of(&model.loaded, &resolved, &core);
        let params = Params { constraint: self.form.constraint(&model)?, ..self.params() };
        let chain = self.samplers.chain(&params.sampling, model.tokenizer.as_deref())?;
        let params = Params { chain: chain.map(Arc::new), ..params };
        let shared = Arc::clone(&model);
        let tokenizer = shared.tokenizer.as_ref();
        rule(self.stop.is_empty() || tokenizer.is_some(), || {
            "--stop needs a model with a tokenizer: the tokens of this one have no text".into()
        })?;
        let speculates = model.loaded.speculation().is_some();
        let mut kvasir = Kvasir::with_core(model, core, overlap)?;
        let rounds = self.spec_trace.then(|| kvasir.trace_drafts());
        let prefill = kvasir.trace_prefill();
        let mut stream = kvasir.stream(prompt, &params)?.until(self.stop.iter().cloned());
        let mut line = (!self.json).then(|| reading(prefill));
        for piece in stream.by_ref() {
            drop(line.take());
            self.print(&piece?, tokenizer.is_some())?;
        }
        let answer = stream.finish()?;
        match answer.reason {
            Finish::Failed(fault) => return Err(Failure::failed(fault)),
            Finish::Refused(refusal) => return Err(Failure::usage(refusal)),
            _ => {}
        }
        if self.json {
            let mut json = json_of(&answer, loaded, self.logprobs.is_some());
            json["setup"] = setup.into();
            if speculates {
                json["speculation"] = json!({"drafted": answer.drafted, "accepted": answer.accepted});
            }
            if let Some(rounds) = rounds {
                json["speculation"]["rounds"] = rounds.take().iter().map(round).collect();
            }
            println!("{json}");
        } else {
            println!()
        }
        if !self.json && answer.text.is_some_and(|text| text.is_empty()) {
            eprintln!("kvasir: {}", why_empty(answer.reason, answer.ids.len()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Loads the model, with a line about it on a terminal.
    fn load(&self) -> Result<Arc<Model>, Failure> {
        let opened = self.model.open()?;
        if self.json {
            return Ok(Model::new(self.model.load_opened(opened)?)?);
        }
        let (opened, _line) = loading(opened, self.model.name());
        Ok(Model::new(self.model.load_opened(opened)?)?)
    }

    /// Prints a streamed piece; ids if the model has no tokenizer.
    fn print(&self, piece: &Piece, words: bool) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        let text =
            if words { piece.text.clone() } else { piece.ids.iter().map(|id| format!("{id} ")).collect() };
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Failure::failed)
    }

    fn params(&self) -> Params {
        let s = &self.sampling;
        Params {
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            sampling: Sampling {
                temperature: s.temperature,
                top_k: s.top_k,
                top_p: s.top_p,
                min_p: s.min_p,
                repetition_penalty: s.repetition_penalty,
                presence_penalty: s.presence_penalty,
                frequency_penalty: s.frequency_penalty,
                seed: s.seed,
                logprobs: self.logprobs,
                ..Sampling::default()
            },
            ..Params::default()
        }
    }
}

/// Explains an empty answer.
fn why_empty(reason: Finish, tokens: usize) -> String {
    match tokens {
        0 | 1 if !is_limit(reason) => NOTHING.into(),
        0 => "there was no room for a token".into(),
        1 => "the one token that was put out has no text; --max-tokens allows more".into(),
        _ => format!("the {tokens} tokens that were put out have no text"),
    }
}

fn is_limit(reason: Finish) -> bool {
    matches!(reason, Finish::MaxTokens | Finish::ModelLength | Finish::Capacity)
}

/// A round of drafts: candidates are `[token, parent or -1, level]`.
fn round(round: &DraftRound) -> Json {
    let candidates: Vec<Json> =
        round.candidates.iter().map(|one| json!([one.token, one.parent, one.level])).collect();
    json!({
        "context_len": round.context_len,
        "root": round.root,
        "candidates": candidates,
        "kept": round.kept,
        "accepted_tokens": round.accepted,
        "bonus": round.bonus,
    })
}

fn json_of(answer: &Answer, load: Duration, wants_logprobs: bool) -> Json {
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    let reason = if is_limit(answer.reason) { "length" } else { "stop" };
    let logprobs = wants_logprobs.then(|| {
        let one = |(id, l): (&Token, &TokenLogprobs)| {
            let top: Vec<Json> = l.top.iter().map(|(id, p)| json!({"id": id, "logprob": p})).collect();
            json!({"id": id, "logprob": l.chosen, "top": top})
        };
        answer.ids.iter().zip(&answer.logprobs).map(one).collect::<Vec<Json>>()
    });
    let outputs = answer.ids.len();
    json!({
        "token_ids": answer.ids,
        "text": answer.text,
        "finish_reason": reason,
        "finish": answer.reason,
        "logprobs": logprobs,
        "usage": {
            "prompt_tokens": answer.prompt,
            "completion_tokens": outputs,
            "total_tokens": answer.prompt as usize + outputs,
            "cached_tokens": answer.cached,
        },
        "timings": {
            "load_seconds": load.as_secs_f64(),
            "ttft_seconds": seconds(answer.ttft),
            "tpot_seconds": seconds(answer.tpot),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_end_at_once_is_called_so() {
        assert_eq!(why_empty(Finish::Eos, 1), NOTHING);
        assert!(why_empty(Finish::MaxTokens, 1).contains("--max-tokens"));
        assert!(why_empty(Finish::MaxTokens, 7).contains("7 tokens"));
        assert!(why_empty(Finish::Eos, 3).contains("3 tokens"));
    }
}
