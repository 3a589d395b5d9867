//! Statistics of `kvasir chat`: token counts, tokens per second, prefix cache hits.

use crate::chat::turn::Turn;
use std::time::Duration;

/// Totals over all answers of a chat.
#[derive(Default)]
pub(crate) struct Tally {
    answers: u32,
    stopped: u32,
    made: u64,
    decode_time: Duration,
    prompts: u64,
    cached: u64,
    drafted: u64,
    accepted: u64,
}

/// Decode rate in tokens per second; the first token belongs to prefill.
fn rate(tokens: u64, decode_time: Duration) -> Option<f64> {
    let seconds = decode_time.as_secs_f64();
    (tokens > 1 && seconds > 0.0).then(|| (tokens - 1) as f64 / seconds)
}

fn format_rate(rate: Option<f64>) -> String {
    rate.map_or_else(String::new, |rate| {
        if rate < 10.0 { format!(" · {rate:.1} tok/s") } else { format!(" · {rate:.0} tok/s") }
    })
}

/// How many drafts of speculative decoding were accepted, if there were any.
fn drafts(accepted: u64, drafted: u64) -> Option<String> {
    let share = (100 * accepted).checked_div(drafted)?;
    Some(format!("{accepted} of {drafted} drafts ({share} %) accepted"))
}

/// A count with its noun, pluralized.
pub(crate) fn plural(n: u64, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

impl Tally {
    /// Adds a turn; returns its summary line.
    pub(super) fn count(&mut self, turn: &Turn) -> String {
        let Some(ended) = &turn.ended else {
            self.stopped += 1;
            return "stopped".into();
        };
        self.answers += 1;
        self.made += u64::from(ended.tokens);
        self.decode_time += ended.decode_time;
        self.prompts += u64::from(ended.prompt);
        self.cached += u64::from(ended.cached);
        self.drafted += u64::from(ended.drafted);
        self.accepted += u64::from(ended.accepted);
        let cut = if ended.reason == "length" { " · cut at its limit" } else { "" };
        format!(
            "{}{} · first after {:.0} ms · {} of {} prompt tokens cached{}{}{cut}",
            plural(u64::from(ended.tokens), "token"),
            format_rate(rate(u64::from(ended.tokens), ended.decode_time)),
            ended.ttft.as_secs_f64() * 1000.0,
            ended.cached,
            ended.prompt,
            ended.cache_end.map_or_else(String::new, |short| format!(" ({short})")),
            drafts(ended.accepted.into(), ended.drafted.into())
                .map_or_else(String::new, |text| format!(" · {text}")),
        )
    }

    /// Names and lines for `/stats`; `context` is the tokens of the branch, if they have been counted.
    pub(super) fn lines(&self, context: Option<u32>, max_len: u32) -> Vec<(&'static str, String)> {
        let share = (100 * self.cached).checked_div(self.prompts).unwrap_or(0);
        let stopped = if self.stopped > 0 { format!(", {} stopped", self.stopped) } else { String::new() };
        let context = match context {
            Some(tokens) => format!("{tokens} of {max_len} tokens"),
            None => format!("up to {max_len} tokens, counted with the next answer"),
        };
        let speed =
            format_rate(rate(self.made.saturating_sub(u64::from(self.answers)) + 1, self.decode_time));
        let mut lines = vec![
            ("answers  ", format!("{}{stopped}", self.answers)),
            ("generated", format!("{}{speed}", plural(self.made, "token"))),
            (
                "prompts  ",
                format!("{}, {} of them ({share} %) cached", plural(self.prompts, "token"), self.cached),
            ),
            ("context  ", context),
        ];
        lines.extend(drafts(self.accepted, self.drafted).map(|text| ("drafts   ", text)));
        lines
    }
}
