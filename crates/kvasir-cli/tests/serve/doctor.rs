//! `kvasir doctor`: healthy and broken setups, and the advice given.

use super::{operations::kvasir, server::model};
use serde_json::Value;
use std::{fs, net::TcpListener};

/// The report, and whether all checks passed.
fn examine(args: &[&str], environment: &[(&str, &str)]) -> (Value, bool) {
    let output = kvasir(&[&["doctor", "--quick", "--json"], args].concat(), environment);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    (report, output.status.success())
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[test]
fn doctor_reports_a_sound_machine_and_its_limits() {
    let folder = model("doctor");
    let (report, is_well) = examine(&[folder.to_str().unwrap(), "--port", "0"], &[]);
    assert!(is_well, "{report}");
    assert!(
        ["amx", "avx512-bf16", "avx512-vnni", "avx-vnni", "avx2", "portable"]
            .contains(&check(&report, "processor")["values"]["level"].as_str().unwrap())
    );
    assert!(check(&report, "threads")["values"]["used"].as_u64().unwrap() > 0);
    assert_eq!(
        (&check(&report, "model")["values"]["dtype"], &check(&report, "text")["state"]),
        (&"f32".into(), &"ok".into())
    );
    let overlap = check(&report, "overlap");
    let found = overlap["found"].as_str().unwrap();
    assert!(overlap["state"] == "ok" && found.starts_with("off by default: "), "{overlap}");
    // 3 layers × 2 heads × 32 elements × (K and V) × 2 bytes.
    assert_eq!(check(&report, "context")["values"]["kv_bytes_per_token"], 3 * 2 * 32 * 2 * 2);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn doctor_reports_each_problem_with_advice() {
    let folder = model("patient");
    let file = folder.join("kvasir.toml");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let args = ["no/such/model", "--port", &port, "--config", file.to_str().unwrap()];
    let cache = folder.to_str().unwrap();
    for (text, says) in [("prot = 1", "`prot`"), ("max-requests = \"many\"", "many"), ("mixed = \"on\"", "")]
    {
        fs::write(&file, text).unwrap();
        let (report, is_well) = examine(&args, &[("HF_HUB_CACHE", cache)]);
        assert!(!is_well);
        for name in ["model", "port"] {
            let check = check(&report, name);
            assert!(check["state"] == "fail" && check["advice"].is_string(), "{check}");
        }
        let config = check(&report, "config");
        let want = if says.is_empty() { "ok" } else { "fail" };
        assert!(config["state"] == want && config["found"].as_str().unwrap().contains(says), "{config}");
        assert_eq!(check(&report, "hub cache")["values"]["models"], 0);
    }
    // The file's content is checked as `serve` would.
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvasir-serve/tests/data");
    let pair = format!("tls-cert = \"{data}/test-cert.pem\"\ntls-key = \"{data}/KEY.pem\"\nport = {port}");
    for (key, state) in [("test-key", "ok"), ("test-cert", "fail")] {
        fs::write(&file, pair.replace("KEY", key)).unwrap();
        let (report, _) = examine(&["--config", file.to_str().unwrap()], &[]);
        assert_eq!(
            (&check(&report, "config")["state"], &check(&report, "port")["state"]),
            (&state.into(), &"fail".into())
        );
    }
    fs::write(folder.join("model.safetensors"), "nothing").unwrap();
    fs::remove_file(&file).unwrap();
    let output = kvasir(&["doctor", cache, "--quick", "--port", "0"], &[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("FAIL  model") && text.contains("→"), "{text}");
    fs::remove_dir_all(&folder).unwrap();
}

/// Nothing about the model is logged: it has not been opened.
#[test]
fn a_taken_port_fails_before_the_model_is_read() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for option in ["--port", "--health-port"] {
        let other = if option == "--port" { "--health-port" } else { "--port" };
        let ran = kvasir(&["serve", "kvasir-mini", option, &port, other, "0"], &[]);
        let log = String::from_utf8(ran.stderr).unwrap();
        assert!(!ran.status.success() && log.contains("cannot listen") && log.contains(option), "{log}");
        assert!(!log.contains("first token"), "{log}");
    }
}
