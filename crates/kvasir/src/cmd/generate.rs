use super::{Failure, model::ModelArgs};
use crate::options::{Facts, Options, Settled};
use kvasir::Loaded;
use kvasir_engine::{Finish, Params, Summary, Turn};
use kvasir_exec::TokenLogprobs;
use kvasir_formats::{TextStream, Tokenizer};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use serde_json::{Map, Value as Json, json};
use std::{io::Write, process::ExitCode, time::Instant};

#[derive(clap::Args)]
#[command(allow_negative_numbers = true)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// The prompt as text; the tokenizer's special tokens are put around it
    #[arg(long, value_name = "TEXT", required_unless_present = "prompt_ids")]
    prompt: Option<String>,
    /// The prompt as ids; nothing is put in front
    #[arg(long, value_delimiter = ',', value_name = "IDS", conflicts_with = "prompt")]
    prompt_ids: Vec<Token>,
    /// Most tokens to put out
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Go on after an end-of-sequence token
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Log-probabilities of the chosen token and of this many likeliest ones
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(0..=100))]
    logprobs: Option<u32>,
    #[command(flatten)]
    options: Options,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct SamplingArgs {
    /// 0 takes the likeliest token
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Keep the k likeliest; 0 keeps all
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Keep the likeliest until their probabilities reach this
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Keep what is at least this share of the likeliest
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Above 1 makes ids less likely that occurred
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Subtracted once from ids that were put out
    #[arg(long, default_value_t = 0.0)]
    presence_penalty: f32,
    /// Subtracted for each time an id was put out
    #[arg(long, default_value_t = 0.0)]
    frequency_penalty: f32,
    /// Key of the noise
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// What came out.
struct Answer {
    tokens: Vec<Token>,
    /// Without special tokens; none where the model has no tokenizer.
    text: Option<String>,
    logprobs: Vec<TokenLogprobs>,
    summary: Summary,
}

impl Args {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        let started = Instant::now();
        let model = self.model.load()?;
        let tokenizer = model.opened.tokenizer()?;
        let loaded = started.elapsed();
        let prompt = self.prompt(tokenizer.as_ref())?;
        let answer = self.answer(&model, prompt, tokenizer.as_ref())?;
        if let Finish::Failed(_) | Finish::Refused(_) = answer.summary.finish {
            return Err(Failure::failed(format!("the request ended early: {:?}", answer.summary.finish)));
        }
        if self.json {
            println!("{}", answer.json(loaded.as_secs_f64(), self.logprobs.is_some()));
        } else {
            println!();
        }
        Ok(ExitCode::SUCCESS)
    }

    fn prompt(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<Token>, Failure> {
        let Some(text) = &self.prompt else { return Ok(self.prompt_ids.clone()) };
        let none = || Failure::usage("--prompt: the model has no tokenizer.json; --prompt-ids does without");
        tokenizer.ok_or_else(none)?.encode(text, true).map_err(Failure::failed)
    }

    fn params(&self, model: &Loaded) -> Params {
        let s = &self.sampling;
        Params {
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            eos: model.opened.eos(),
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
            },
            ..Params::default()
        }
    }

    /// Everything that decides, for one request. Unless told otherwise: the cache of a single stream, as long as prompt and
    /// limit together.
    fn settle(&self, model: &Loaded, prompt: usize) -> Result<Settled, Failure> {
        let max_model_len = model.program().max_positions as u32;
        let longest = prompt.saturating_add(self.max_tokens as usize).min(model.program().max_positions);
        // Whole blocks of any size.
        let wanted = (longest as u32).next_multiple_of(256);
        let slots = model.slots_in_memory(self.options.memory_share()?).map_or(wanted, |s| s.min(wanted));
        let mut base = Map::new();
        if !self.options.needs_blocks() {
            base.insert("cache".into(), "contiguous".into());
        }
        let options = self.options.over(&Options::from_map(&base)?)?;
        options.settle(Facts { max_model_len, slots, is_cpu: true })
    }

    fn answer(
        &self,
        model: &Loaded,
        prompt: Vec<Token>,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Answer, Failure> {
        let settled = self.settle(model, prompt.len())?;
        let request = model.request(prompt, self.params(model))?;
        let overlap = settled.overlap;
        let mut engine = model.engine(settled.core(), overlap)?;
        engine.add_request(request).map_err(Failure::usage)?;
        let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
        let mut text =
            Text { tokenizer, stream: TextStream::new(true), all: String::new(), print: !self.json };
        loop {
            let turn = engine.step().map_err(Failure::failed)?;
            let outbox = engine.core_mut().outbox();
            outbox.tokens.iter().try_for_each(|id| text.push(*id))?;
            tokens.append(&mut outbox.tokens);
            logprobs.extend(outbox.logprobs.drain(..).map(|(_, logprobs)| logprobs));
            if let Some(summary) = outbox.ended.pop() {
                return Ok(Answer { tokens, text: text.finish()?, logprobs, summary });
            }
            outbox.clear();
            if turn == Turn::Idle {
                return Err(Failure::failed("the engine stopped without an answer"));
            }
        }
    }
}

/// The answer's text as it comes, printed or only kept; ids where there is no tokenizer.
struct Text<'a> {
    tokenizer: Option<&'a Tokenizer>,
    stream: TextStream,
    all: String,
    print: bool,
}

impl Text<'_> {
    fn push(&mut self, id: Token) -> Result<(), Failure> {
        let piece = match self.tokenizer {
            Some(tokenizer) => self.stream.push(tokenizer, id),
            None => format!("{id} "),
        };
        self.put(&piece)
    }

    fn put(&mut self, piece: &str) -> Result<(), Failure> {
        self.all.push_str(piece);
        if !self.print || piece.is_empty() {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        out.write_all(piece.as_bytes()).and_then(|()| out.flush()).map_err(Failure::failed)
    }

    fn finish(mut self) -> Result<Option<String>, Failure> {
        let rest = self.stream.finish();
        self.put(&rest)?;
        Ok(self.tokenizer.map(|_| self.all))
    }
}

impl Answer {
    fn json(&self, load_seconds: f64, wants_logprobs: bool) -> Json {
        let summary = &self.summary;
        let seconds = |nanos: Option<u64>| nanos.map(|n| n as f64 / 1e9);
        let reason = match summary.finish {
            Finish::MaxTokens | Finish::ModelLength | Finish::Capacity => "length",
            _ => "stop",
        };
        let logprobs = wants_logprobs.then(|| {
            let one = |(id, l): (&Token, &TokenLogprobs)| {
                let top: Vec<Json> = l.top.iter().map(|(id, p)| json!({"id": id, "logprob": p})).collect();
                json!({"id": id, "logprob": l.chosen, "top": top})
            };
            self.tokens.iter().zip(&self.logprobs).map(one).collect::<Vec<Json>>()
        });
        json!({
            "token_ids": self.tokens,
            "text": self.text,
            "finish_reason": reason,
            "finish": summary.finish,
            "logprobs": logprobs,
            "usage": {
                "prompt_tokens": summary.prompt,
                "completion_tokens": summary.outputs,
                "total_tokens": summary.prompt + summary.outputs,
                "cached_tokens": summary.cached,
            },
            "timings": {
                "load_seconds": load_seconds,
                "ttft_seconds": seconds(summary.ttft()),
                "tpot_seconds": seconds(summary.tpot()),
            },
        })
    }
}
