//! `doctor` checks of the model: data types, servable or not, memory fit, context capacity, decode
//! bound (roofline), tokenizer and template.

use crate::doctor::check::Check;
use crate::doctor::forecast::{Forecast, Range, chosen_experts, limits_of, slot_bytes};
use kvasir::{EngineConfig, KvType, OpenedModel, Precision};
use kvasir_cpu::MachineLimits;
use kvasir_kv::StateConfig;
use kvasir_program::Role;
use std::collections::BTreeMap;

const GB: f64 = 1e9;

pub(crate) fn checks(
    opened: &OpenedModel,
    name: &str,
    free: Option<u64>,
    peaks: Option<&MachineLimits>,
) -> Vec<Check> {
    let limits = peaks.map(|peaks| limits_of(opened, Precision::Auto, *peaks).1);
    let forecast = Forecast::of(opened, KvType::Bf16, free, &EngineConfig::default(), limits.as_ref());
    let tensors = opened.checkpoint.tensors();
    let own: u64 = tensors.map(|tensor| tensor.bytes.len() as u64).sum();
    let mut checks = vec![weights(opened, name, own)];
    checks.extend([fits(forecast.stored, free), context(opened, &forecast)]);
    // Without drafts: how many of them are accepted depends on the text.
    checks.extend(peaks.map(|peaks| reach(own.saturating_sub(idle(opened)), peaks.bandwidth)));
    checks.extend(forecast.first_token.map(first_token));
    checks.push(words(opened));
    checks
}

fn weights(opened: &OpenedModel, name: &str, stored: u64) -> Check {
    let mut types: BTreeMap<String, u64> = BTreeMap::new();
    for tensor in opened.checkpoint.tensors() {
        *types.entry(tensor.dtype.to_string()).or_default() += tensor.bytes.len() as u64;
    }
    let most = types.iter().max_by_key(|(_, bytes)| **bytes).map_or("nothing", |(dtype, _)| dtype);
    let target = &opened.model.target;
    let found = format!("{name}: {}, {:.2} GB, mostly {most}", target.architecture, stored as f64 / GB);
    Check::ok("model", found)
        .value("stored_bytes", stored)
        .value("dtype", most)
        .value("architecture", target.architecture.clone())
}

/// Whether weights fit: files are mapped, and packed copies of matrices replace their pages.
fn fits(stored: u64, free: Option<u64>) -> Check {
    let size = format!("weights take {:.2} GB", stored as f64 / GB);
    match free {
        None => Check::warn("fit", format!("{size}; the system does not say what is free")),
        Some(free) if stored > free => {
            Check::fail("fit", format!("{size}, {:.2} GB are free", free as f64 / GB))
                .advise("end other programs, or take a smaller model or one of fewer bits (`kvasir convert`)")
        }
        Some(free) if stored.saturating_mul(5) / 4 > free => {
            Check::warn("fit", format!("{size}, {:.2} GB are free", free as f64 / GB))
                .advise("little is left for contexts; take one of fewer bits, or a lower --kv-capacity")
        }
        Some(_) => Check::ok("fit", size),
    }
}

/// Context capacity: tokens of K/V per GB, and the division of the memory left by the weights.
fn context(opened: &OpenedModel, forecast: &Forecast) -> Check {
    let all_layers = slot_bytes(opened, KvType::Bf16) as u64;
    // Without full-attention layers, the full group has no bytes.
    let full_group = forecast.division.as_ref().map(|division| division.slot_bytes);
    let slot = full_group.filter(|bytes| *bytes > 0).unwrap_or(all_layers).max(1);
    let per_gb = 1_000_000_000 / slot;
    let mut found = format!("{per_gb} tokens of K/V per GB in bf16");
    let mut check = Check::ok("context", "");
    if let Some(division) = &forecast.division {
        let longest = forecast.context(division);
        found += &format!(
            ", {} in the memory that the weights leave; contexts of up to {longest}",
            division.slots
        );
        check = check.value("tokens", division.slots).value("longest", longest);
        for window in &division.windows {
            found += &format!("; {window}");
            check = check.value("window_slots", window.config.capacity).value("window_bytes", window.bytes());
        }
        if let Some(reason) = division.joined_windows {
            found += &format!("; sliding-window layers store K/V of all tokens: {reason}");
        }
        if let Some(states) = division.states {
            found += &format!("; {states}");
            let StateConfig { live, checkpoints, interval, .. } = states.config;
            check = check.value("live_states", live).value("checkpoints", checkpoints);
            check = check.value("state_interval", interval).value("state_bytes", states.state_bytes);
        }
    }
    check.found(found).value("kv_bytes_per_token", slot).value("tokens_per_gb", per_gb)
}

/// Time to the first token of a long prompt.
fn first_token((tokens, seconds): (usize, f64)) -> Check {
    let found = format!("of a {tokens}-token prompt after {}", Range(seconds, seconds * 2.0));
    Check::ok("first token", found).value("prompt_tokens", tokens).value("seconds_at_least", seconds)
}

/// Bytes of MoE experts that a token does not activate.
fn idle(opened: &OpenedModel) -> u64 {
    let program = &opened.model.target;
    let share = 1.0 - chosen_experts(program);
    let experts = program.weights.iter().filter(|weight| weight.role == Role::Experts);
    let experts: usize = experts.map(|weight| opened.checkpoint.stored_bytes(&weight.name)).sum();
    (experts as f64 * share) as u64
}

/// Roofline bound of single-stream decode: each token reads all active weights once.
fn reach(read: u64, bandwidth: f64) -> Check {
    let rate = bandwidth / (read as f64).max(1.0);
    let found = format!("one stream gets at most {rate:.0} tokens/s of these weights from this memory");
    Check::ok("reach", found).value("tokens_per_second_at_most", rate)
}

/// Tokenizer and chat template.
fn words(opened: &OpenedModel) -> Check {
    let files = match opened.text_files().and_then(|files| Ok((files.tokenizer()?, files))) {
        Ok((_, files)) => files,
        Err(why) => {
            return Check::fail("text", why.to_string())
                .advise("fetch the model's tokenizer.json too; without it prompts can only be token ids");
        }
    };
    match files.template_source(None) {
        Err(why) => Check::fail("text", format!("the chat template cannot be read: {why}")),
        Ok(None) => Check::warn("text", "a vocabulary and no chat template")
            .advise("chats will be refused; completions work"),
        Ok(Some(source)) => match files.template(None) {
            Ok(_) if !source.contains("tools") => {
                Check::warn("text", "a vocabulary, and a chat template that renders no tools").advise(
                    "requests with tools get a generic prompt; a model trained on tools calls them better",
                )
            }
            Ok(_) => Check::ok("text", "a vocabulary and a chat template"),
            Err(why) => Check::fail("text", format!("the chat template cannot be used: {why}"))
                .advise("chats will fail; completions work"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_larger_than_memory_is_reported() {
        assert_eq!(fits(100, Some(1000)), Check::ok("fit", "weights take 0.00 GB"));
        let state = |stored, free| serde_json::to_value(fits(stored, Some(free))).unwrap()["state"].clone();
        assert_eq!([state(1000, 999), state(1000, 1249), state(1000, 1250)], ["fail", "warn", "ok"]);
    }
}
