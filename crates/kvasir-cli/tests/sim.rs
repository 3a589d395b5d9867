//! `kvasir sim` as a program: usage errors, output files, broken pipes.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_testkit::paths;
use std::{
    fs,
    process::{Command, Output},
};

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kvasir")).arg("sim").args(args).output().unwrap()
}

#[test]
fn usage_errors_are_one_line_and_leave_no_file() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "sim-bad");
    let scenario = folder.join("scenario.json");
    fs::write(&scenario, r#"{"format": "kvasir-scenario/1", "options": {"color": 1}, "requests": []}"#)
        .unwrap();
    let scenario = scenario.to_str().unwrap();
    let page = folder.join("page.html");
    let page = page.to_str().unwrap();
    let other_name = folder.join("../sim-bad/page.html");
    let other_name = other_name.to_str().unwrap();
    let fine = folder.join("fine.json");
    fs::write(&fine, r#"{"format": "kvasir-scenario/1", "requests": []}"#).unwrap();
    let fine = fine.to_str().unwrap();
    let board = folder.join("board.toml");
    fs::write(&board, "bandwidth = 2e11\nmemory = 16e9\n[arithmetic]\nbf16 = 2e13\n").unwrap();
    let board = board.to_str().unwrap();
    for (args, named) in [
        (vec![scenario], "color"),
        (vec!["--workload", "chat", "--requests", "-5"], "--requests"),
        (vec!["--workload", "chat", "--requests", "0"], "--requests"),
        (vec!["--workload", "chat", "--rate", "nan"], "--rate"),
        (vec!["--workload", "offline", "--rate", "3"], "--workload offline"),
        (vec!["--workload", "chat", "--delay-factor", "2"], "--policy prefill-first"),
        (vec!["--workload", "chat", "--cache", "cells", "--block-size", "16"], "--cache cells"),
        (vec!["--workload", "chat", "--cache", "foo"], "foo"),
        (vec!["--workload", "chat", "--cache", "tree", "--prefix-cache", "off"], "--cache tree"),
        (vec!["--workload", "chat", "--cache", "cells", "--prefix-cache", "on"], "--cache cells"),
        (vec!["--workload", "steady", "--shared-prefix", "600"], "--prompt-tokens 512"),
        (vec!["--workload", "offline", "--requests", "100000000"], "--workload offline"),
        (vec!["--workload", "chat", "--faults", "lost=1,lost=2"], "`lost` occurs twice"),
        (vec!["--workload", "chat", "--trace", other_name], "--html and --trace"),
        (vec![fine, "--trace", fine], "--trace and SCENARIO.json"),
        (vec![fine, "--rate", "3"], "--rate cannot be combined with SCENARIO.json"),
        (vec![fine, "--requests", "3"], "--requests cannot be combined with SCENARIO.json"),
        (vec!["no\nsuch.json"], "no\\nsuch.json"),
        (vec!["--workload", "chat", "--policy", "rectangular", "--chunk-size", "100"], "--block-size 64"),
        (vec!["--workload", "chat", "--policy", "rectangular", "--long-output-first", "on"], "--pausing off"),
        (vec!["--workload", "chat", "--sim-preset", "abacus"], "abacus"),
        (vec!["--workload", "chat", "--sim-preset", "m1-max:qwen3-14b:fp8"], "it has bf16"),
        (vec!["--workload", "chat", "--machine", fine], "fine.json"),
        (vec!["--workload", "chat", "--machine", board, "--sim-preset", "h100:qwen3-8b:fp8"], "`h100`"),
        (vec!["--workload", "chat", "--machine", board, "--sim-preset", "h100"], "--sim-preset h100"),
        (vec!["--workload", "chat", "--machine", board, "--sim-preset", "instant"], "--sim-preset instant"),
        (vec!["--workload", "chat", "--machine", board, "--sim-preset", "fixed:5ms"], "--sim-preset fixed"),
        (vec!["--workload", "chat", "--machine", board, "--sim-preset", "qwen3-8b:fp8"], "it has bf16"),
        (vec!["--workload", "chat", "--faults", "rain=1"], "rain"),
        (vec!["--workload", "chat", "--spec", "mtp"], "--acceptance"),
        (vec!["--workload", "chat", "--spec", "ngram", "--acceptance", "0.5"], "--spec ngram"),
        (vec!["--workload", "chat", "--spec", "mtp", "--acceptance", "1.5"], "--acceptance"),
        (vec!["--workload", "chat", "--spec", "draft:x", "--acceptance", "0.5"], "unknown shape `x`"),
        (vec!["--workload", "offline", "--repetition", "0.5"], "--workload offline"),
        (vec![fine, "--repetition", "0.5"], "--repetition cannot be combined with SCENARIO.json"),
        (vec!["--workload", "chat", "--kv-capacity", "64", "--memory-utilization", "0.5"], "--kv-capacity"),
        (vec!["--workload", "chat", "--block-size", "257"], "--block-size 257"),
        (vec!["--workload", "chat", "--kv-capacity", "0"], "--kv-capacity 0 must be at least 1"),
        (vec!["--workload", "chat", "--memory-utilization", "0"], "--memory-utilization 0"),
        (vec!["--workload", "chat", "--memory-utilization", "-1"], "--memory-utilization -1"),
        (vec!["--workload", "chat", "--kv-capacity", "4294967295"], "--kv-capacity 4294967295"),
        (vec!["--workload", "chat", "--max-num-seqs", "2147483648"], "--max-num-seqs 2147483648"),
        (vec!["--workload", "chat", "--policy", "prefill-first", "--delay-factor", "nan"], "--delay-factor"),
        (vec!["--workload", "chat", "--watermark", "inf"], "--watermark"),
        (vec!["--workload", "chat", "--max-model-len", "4294967295"], "--max-model-len 4294967295"),
        (vec!["--workload", "chat", "--max-num-batched-tokens", "4294967295"], "--max-num-batched-tokens"),
        (vec!["--workload", "chat", "--trace", page], "--trace"),
        (vec!["--workload", "chat", scenario], "--workload"),
        (vec![], "SCENARIO.json"),
    ] {
        let mut all = args.clone();
        all.extend(["--html", page]);
        let out = sim(&all);
        let printed = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {printed}");
        assert!(printed.contains(named) && printed.trim_end().lines().count() == 1, "{args:?}: {printed}");
        assert!(out.stdout.is_empty());
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
}

#[test]
fn invalid_options_of_replicas_are_usage_errors() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "sim-replicas");
    let stepped = folder.join("stepped.json");
    let request = r#"{"prompt_len": 9, "max_tokens": 3, "arrival_step": 4}"#;
    fs::write(&stepped, format!(r#"{{"format": "kvasir-scenario/1", "requests": [{request}]}}"#)).unwrap();
    let page = folder.join("page.html");
    let (stepped, page) = (stepped.to_str().unwrap(), page.to_str().unwrap());
    for (args, named) in [
        (vec!["--workload", "chat", "--replicas", "0"], "--replicas"),
        (vec!["--workload", "chat", "--route", "prefix"], "--replicas"),
        (vec!["--workload", "chat", "--replicas", "2", "--route", "nearest"], "least-tokens"),
        (vec!["--workload", "chat", "--replicas", "2", "--trace", page], "2 replicas"),
        (vec!["--workload", "chat", "--roles", "1:1", "--trace", page], "2 replicas"),
        (vec!["--workload", "chat", "--roles", "1"], "P:D"),
        (vec!["--workload", "chat", "--roles", "2:2", "--replicas", "3"], "--replicas 3"),
        (vec!["--workload", "chat", "--roles", "1:1", "--prefix-cache", "off"], "--route prefix"),
        (
            vec!["--workload", "chat", "--roles", "1:1", "--route", "session", "--prefix-cache", "off"],
            "--roles",
        ),
        (vec!["--workload", "chat", "--roles", "1:1", "--sim-preset", "l40s"], "--links"),
        (vec!["--workload", "chat", "--tp", "17"], "16 attention heads"),
        (vec!["--workload", "chat", "--tp", "2", "--sim-preset", "cpu2-amx"], "--links"),
        (vec!["--workload", "chat", "--links", "ranks=fast"], "CLASS=BANDWIDTH:LATENCY"),
        (vec!["--workload", "chat", "--failures", "mtbf=1"], "restart"),
        (vec!["--workload", "chat", "--replicas", "2", "--cache", "cells"], "--cache cells"),
        (vec!["--workload", "chat", "--replicas", "2", "--prefix-cache", "off"], "--route prefix"),
        (vec![stepped, "--replicas", "2"], "`arrival_step`"),
    ] {
        let out = sim(&args);
        let printed = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{args:?}: {printed}");
        assert!(printed.contains(named), "{args:?}: {printed}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
}

#[test]
fn reports_list_each_replica() {
    let all = "--workload interactive-agents --requests 40 --replicas 3 --route session";
    let args: Vec<&str> = all.split(' ').collect();
    let text = String::from_utf8(sim(&args).stdout).unwrap();
    for line in ["replica 2 ", "busiest / mean replica", "queue / prefill / decode"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let report: serde_json::Value =
        serde_json::from_slice(&sim(&[&args[..], &["--json"]].concat()).stdout).unwrap();
    assert_eq!(report["replicas"].as_array().unwrap().len(), 3);
    assert_eq!((&report["setup"]["route"], &report["setup"]["replicas"]), (&"session".into(), &3.into()));
}

#[test]
fn reports_divide_the_time_of_replicas_by_cause() {
    let fleet = "--workload agents --requests 60 --rate 60 --sim-preset h200:qwen3-14b --roles 1:2 --tp 2 \
                 --failures mtbf=1,restart=0.2";
    let args: Vec<&str> = fleet.split_whitespace().collect();
    let text = String::from_utf8(sim(&args).stdout).unwrap();
    for line in ["time of replicas", "decode (2)", "collectives ", "restart ", "idle ", "between replicas "] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let report: serde_json::Value =
        serde_json::from_slice(&sim(&[&args[..], &["--json"]].concat()).stdout).unwrap();
    let setup = &report["setup"];
    assert_eq!((&setup["tp"], &setup["roles"], &setup["replicas"]), (&2.into(), &"1:2".into(), &3.into()));
    assert_eq!(report["time_of_replicas"][0]["role"], "prefill");
    let plain = ["--workload", "agents", "--requests", "60", "--json"];
    assert_eq!(sim(&plain).stdout, sim(&[&plain[..], &["--tp", "1"]].concat()).stdout);
}

#[test]
fn the_page_plots_several_replicas_over_time() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "sim-fleet-page");
    let page = folder.join("page.html");
    let out = sim(&[
        "--workload",
        "agents",
        "--requests",
        "40",
        "--roles",
        "1:2",
        "--html",
        page.to_str().unwrap(),
    ]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let page = fs::read_to_string(&page).unwrap();
    for part in ["\"fleet\":", "K/V transfers", "0, prefill", "of replica 0"] {
        assert!(page.contains(part), "{part}");
    }
}

/// The clock has nanoseconds of 64 bits; it must not wrap.
#[test]
fn a_run_of_more_than_a_century_fails() {
    let out = sim(&[
        "--workload",
        "steady",
        "--requests",
        "5000",
        "--prompt-tokens",
        "16",
        "--output-tokens",
        "2",
        "--rate",
        "1e-6",
    ]);
    let printed = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{printed}");
    assert!(printed.contains("passed 100 years"), "{printed}");
}

#[test]
fn unwritable_outputs_are_refused_before_the_run() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "sim-unwritable");
    // Neither file nor folder, like a device: must not be replaced.
    let socket = folder.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for place in [&socket, &folder, &folder.join("nowhere").join("page.html")] {
        let out = sim(&["--workload", "chat", "--requests", "2", "--html", place.to_str().unwrap()]);
        let printed = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{printed}");
        assert!(
            printed.contains(place.to_str().unwrap()) && printed.trim_end().lines().count() == 1,
            "{printed}"
        );
        assert!(out.stdout.is_empty());
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    drop(listener);
    // A link stays a link, and its target is written.
    let (page, link) = (folder.join("page.html"), folder.join("link.html"));
    fs::write(&page, "").unwrap();
    std::os::unix::fs::symlink(&page, &link).unwrap();
    let out = sim(&["--workload", "chat", "--requests", "2", "--html", link.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink() && fs::read(&page).unwrap().len() > 1000);
}

#[test]
fn a_closed_pipe_causes_no_panic() {
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvasir-bench/scenarios/prefix-1.json");
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvasir-conformance/cases/own.json");
    for args in [["sim", scenario], ["replay", cases]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let kvasir = Command::new(env!("CARGO_BIN_EXE_kvasir")).args(args).stdout(writer).output().unwrap();
        let printed = String::from_utf8(kvasir.stderr).unwrap();
        assert_eq!((kvasir.status.code(), printed.as_str()), (Some(1), ""), "{args:?}");
    }
}

#[test]
fn a_machine_file_replaces_the_machine_and_names_its_source() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "sim-machine");
    let file = folder.join("board.toml");
    let text = "bandwidth = 2e11\nmemory = 16e9\nsource = \"its maker\"\n[arithmetic]\nbf16 = 2e13\n";
    fs::write(&file, text).unwrap();
    let args = ["--workload", "steady", "--requests", "4", "--sim-preset", "qwen3-0.6b", "--machine"];
    let with = |more: &[&str]| {
        let out = sim(&[&args, more].concat());
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let file = file.to_str().unwrap();
    let report: serde_json::Value = serde_json::from_str(&with(&[file, "--json"])).unwrap();
    let machine = &report["machine"];
    assert_eq!((&machine["name"], &machine["shape"]), (&"board".into(), &"qwen3-0.6b".into()));
    assert_eq!(machine["figures"][0]["source"], "published: its maker");
    let args = [args[..4].to_vec(), vec!["--machine", file, "--json"]].concat();
    let alone: serde_json::Value = serde_json::from_slice(&sim(&args).stdout).unwrap();
    assert_eq!(alone["machine"], report["machine"], "the model is the default one");
    let lines = with(&[file]);
    let found = "published: its maker: bandwidth 200 GB/s, arithmetic 20.0 Top/s, memory 16.0 GB";
    assert!(lines.contains(found), "{lines}");
}

#[test]
fn a_page_a_trace_and_a_report() {
    let folder = paths::scratch(env!("CARGO_TARGET_TMPDIR"), "sim-good");
    let (page, trace) = (folder.join("page.html"), folder.join("trace.jsonl"));
    let scenario = concat!(env!("CARGO_MANIFEST_DIR"), "/../kvasir-bench/scenarios/prefix-1.json");
    let (page_arg, trace_arg) = (page.to_str().unwrap(), trace.to_str().unwrap());
    let out = sim(&[scenario, "--json", "--html", page_arg, "--trace", trace_arg]);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["finished"], 2);
    // The second prompt hits 14 blocks: 13 in skipped chunks, one recomputed.
    assert_eq!(report["outcomes"][1]["cached"], 896);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("kvasir-trace/1"));
    let trace = fs::read_to_string(trace).unwrap();
    assert_eq!(trace.lines().count() as u64, report["steps"].as_u64().unwrap() + 2);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
}

fn report(args: &str) -> serde_json::Value {
    let base =
        "--workload steady --requests 24 --rate 8 --output-tokens 200 --sim-preset h200:qwen3-14b --json";
    let args: Vec<&str> = base.split(' ').chain(args.split_whitespace()).collect();
    let out = sim(&args);
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn simulated_drafts_are_accepted_by_their_profile() {
    let (plain, drafting) = (report(""), report("--spec mtp:2 --acceptance 0.9,0.5"));
    assert_eq!(plain["output_tokens"], drafting["output_tokens"]);
    let count = |field: &str, depth: usize| drafting["speculation"][field][depth].as_f64().unwrap();
    let (first, second) =
        (count("accepted", 0) / count("drafted", 0), count("accepted", 1) / count("accepted", 0));
    assert!((0.85..0.95).contains(&first) && (0.4..0.6).contains(&second), "{first} {second}");
    let tpot = |report: &serde_json::Value| report["tpot_ms"]["p50"].as_f64().unwrap();
    assert!(tpot(&drafting) < 0.7 * tpot(&plain));
    assert_eq!(drafting, report("--spec mtp:2 --acceptance 0.9,0.5"), "runs are deterministic");
    // Lookups find only what an answer repeats.
    let accepted = |report: &serde_json::Value| report["speculation"]["accepted"][0].as_u64().unwrap_or(0);
    assert!(accepted(&report("--spec suffix --repetition 0.8")) > 200);
    assert!(accepted(&report("--spec suffix")) < 20);
}

#[test]
fn every_queue_order_has_something_to_order() {
    let orders = ["fcfs", "priority", "fair"];
    let reports =
        orders.map(|order| report(&format!("--max-num-seqs 2 --order {order}"))["outcomes"].clone());
    assert!(reports[0] != reports[1] && reports[1] != reports[2] && reports[0] != reports[2]);
}
