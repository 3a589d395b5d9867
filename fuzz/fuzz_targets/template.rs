//! Any text as a chat template, within small limits.
#![no_main]

use kvasir_formats::{ChatTemplate, Limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|source: &str| {
    let limits = Limits { fuel: 50_000, value_bytes: 1 << 18, total_bytes: 4 << 20, depth: 200 };
    let variables = serde_json::json!({
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": []}],
        "tools": null, "add_generation_prompt": true, "bos_token": "<s>",
    });
    if let (Ok(template), Some(variables)) = (ChatTemplate::new(source), variables.as_object()) {
        let _ = template.with_limits(limits).render(variables, 0);
    }
});
