//! Loops over all architectures: each has a test checkpoint, converts to GGUF, and reads the same
//! from the file's metadata alone.
#![allow(clippy::unwrap_used, clippy::panic)]

use kvasir_formats::{
    Checkpoint, Rules, convert,
    gguf::{Gguf, Value, Writer},
};
use kvasir_program::{Architecture, Model, Program};
use kvasir_testkit::paths::scratch;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Checkpoints with settings that no key of GGUF expresses, and the reason.
const BEYOND_KEYS: &[(&str, &str)] = &[
    ("gemma3", "full layers other than every sixth"),
    ("mistral", "windows"),
    ("mixtral_swa", "windows"),
    ("rerank_modernbert", "a classifier that pools other than by the first token"),
    ("qwen2_swa", "windows"),
    ("qwen3_yarn_swa", "windows"),
];

/// The test checkpoints by architecture.
fn cases() -> BTreeMap<&'static str, Vec<PathBuf>> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let entries = |kind: &str| std::fs::read_dir(data.join(kind)).unwrap();
    let mut paths: Vec<_> =
        entries("models").chain(entries("encoders")).map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut cases: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for path in paths {
        let checkpoint = Checkpoint::open(&path).unwrap();
        cases.entry(Architecture::of(checkpoint.config()).unwrap().name()).or_default().push(path);
    }
    cases
}

/// The same file without our own metadata keys.
fn as_others_write_it(from: &Path, to: &Path) {
    let gguf = Gguf::open(from).unwrap();
    let mut writer = Writer::new();
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with("kvasir.")) {
        writer.set(key.as_str(), value.clone());
    }
    let tensors = gguf.tensors();
    tensors.iter().for_each(|t| writer.describe(t.name.as_str(), t.dtype, &t.shape).unwrap());
    let bytes = |name: &str, out: &mut Vec<u8>| {
        out.extend(gguf.bytes(tensors.iter().find(|t| t.name == name).unwrap()));
        Ok(())
    };
    writer.write(std::fs::File::create(to).unwrap(), bytes).unwrap();
}

/// The first difference of two programs that is more than rounding.
fn difference(a: &Program, b: &Program) -> Option<String> {
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-5 * a.abs().max(b.abs());
    if let Some((a, b)) = a.ops.iter().zip(&b.ops).find(|(a, b)| a != b) {
        return Some(format!("embedded {a:?}, derived {b:?}"));
    }
    if let Some((a, b)) = a.layers.iter().zip(&b.layers).find(|(a, b)| a != b) {
        return Some(format!("embedded {a:?}, derived {b:?}"));
    }
    let lengths = |p: &Program| (p.ops.len(), p.layers.len(), p.ropes.len(), p.weights.len());
    if lengths(a) != lengths(b) {
        return Some(format!("embedded {:?}, derived {:?}", lengths(a), lengths(b)));
    }
    let frequency_at = |rope: &kvasir_program::Rope, length| rope.frequencies(length).to_vec();
    for (a, b) in a.ropes.iter().zip(&b.ropes) {
        for length in [1, 1 << 20] {
            let (one, other) = (frequency_at(a, length), frequency_at(b, length));
            let is_same = one.len() == other.len() && one.iter().zip(&other).all(|(a, b)| close(*a, *b));
            if !is_same || !close(a.amplitude, b.amplitude) || a.temperature != b.temperature {
                return Some(format!("embedded {a:?}, derived {b:?}"));
            }
        }
    }
    None
}

#[test]
fn every_architecture_has_a_checkpoint_and_reads_the_same_from_gguf() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "architectures");
    let (ours, theirs) = (folder.join("a.gguf"), folder.join("b.gguf"));
    let (cases, mut wrong) = (cases(), Vec::new());
    for architecture in Architecture::all() {
        let name = architecture.name();
        let paths = cases.get(name).unwrap_or_else(|| panic!("{name} has no test checkpoint"));
        for path in paths {
            let case = path.file_name().unwrap().to_str().unwrap();
            convert(path, &ours, &Rules::parse("f32", &[]).unwrap())
                .unwrap_or_else(|e| panic!("{case}: {e}"));
            as_others_write_it(&ours, &theirs);
            let [embedded, derived] = [&ours, &theirs].map(|file| {
                let checkpoint = Checkpoint::open(file).unwrap_or_else(|e| panic!("{case}: {e}"));
                let written = checkpoint.gguf().unwrap().architecture();
                assert!(architecture.gguf.names.contains(&written), "{case}: {written}");
                Model::build(&checkpoint.source()).map_err(|error| error.to_string())
            });
            let embedded = embedded.unwrap_or_else(|e| panic!("{case}: {e}"));
            assert_eq!(embedded.target.is_encoder(), architecture.is_encoder, "{case}");
            let found = match derived {
                Err(error) => Some(error),
                Ok(derived) if derived.predictions.len() != embedded.predictions.len() => {
                    Some("prediction layers are lost".to_owned())
                }
                Ok(derived) => difference(&embedded.target, &derived.target),
            };
            let is_beyond = BEYOND_KEYS.iter().any(|(beyond, _)| *beyond == case);
            match found {
                Some(found) if !is_beyond => wrong.push(format!("{case}: {found}")),
                None if is_beyond => wrong.push(format!("{case}: is expressed by the keys after all")),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unknown_gguf_architectures_name_the_nearest_known_one() {
    let folder = scratch(env!("CARGO_TARGET_TMPDIR"), "unknown-architecture");
    let file = folder.join("a.gguf");
    for (unknown, nearest) in [("qwen45", "qwen35"), ("smollm4", "smollm3"), ("gptoss", "gpt-oss")] {
        let mut writer = Writer::new();
        writer.set("general.architecture", Value::Str(unknown.into()));
        writer.write(std::fs::File::create(&file).unwrap(), |_, _| Ok(())).unwrap();
        let error = Checkpoint::open(&file).unwrap_err().to_string();
        let expected = format!("architecture {unknown:?} is not known; the nearest known one is {nearest:?}");
        assert!(error.contains(&expected), "{error}");
    }
}
