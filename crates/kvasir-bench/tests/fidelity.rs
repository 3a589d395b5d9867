//! `bench fidelity` on tiny recorded checkpoints.
#![allow(clippy::unwrap_used)]

use kvasir_bench::bench::fidelity::{FidelityBench, FidelityReport};
use kvasir_cpu::KvType;
use kvasir_formats::Checkpoint;

fn report(case: &str, kv: Option<KvType>, layers: bool) -> FidelityReport {
    let checkpoint = Checkpoint::open(&kvasir_testkit::paths::model(case)).unwrap();
    let text = (0..96).map(|i| (i * 7919 + 11) % 300).collect();
    FidelityBench { text, kv, threads: Some(2), layers }.run(&checkpoint, |_| ()).unwrap()
}

#[test]
fn errors_of_the_default_are_small_and_layers_are_listed() {
    let report = report("qwen3_bf16", None, true);
    let errors = report.divergence;
    assert_eq!((errors.positions, report.tokens, report.kv_dtype.as_str()), (96, 96, "f16"));
    assert!(errors.mean_kl >= 0.0 && errors.mean_kl < 1e-3, "{errors:?}");
    assert!(errors.mean_error > 0.0 && errors.mean_error <= errors.max_error, "{errors:?}");
    assert!(errors.max_error < 0.5 && errors.agreeing >= 90, "{errors:?}");
    assert!((errors.perplexity / errors.perplexity_exact - 1.0).abs() < 0.01, "{errors:?}");
    let relative: Vec<f64> = report.layers.iter().map(|layer| layer.relative).collect();
    assert!(
        !relative.is_empty() && relative.iter().all(|error| *error > 0.0 && *error < 0.05),
        "{relative:?}"
    );
}

#[test]
fn coarse_keys_and_values_err_more() {
    let error = |kv| report("qwen3_bf16", Some(kv), false).divergence.mean_error;
    assert!(error(KvType::Q4_0) > 2.0 * error(KvType::Bf16));
}
