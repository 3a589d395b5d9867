//! `sim --machine FILE.toml`: the limits of a machine for the cost model.
//!
//! ```toml
//! bandwidth = 3.35e12         # bytes per second
//! memory = 80e9               # bytes
//! weights = "fp8"             # default: bf16
//! source = "its data sheet"   # default: given
//! [arithmetic]                # operations per second, by type of the weights
//! bf16 = 989.5e12
//! fp8 = 1979e12
//! [launch]                    # seconds; default: as measured on the H200
//! kernel = 3.6e-6
//! [links.ranks]               # between the ranks of --tp; default: none
//! bandwidth = 450e9           # bytes per second in each direction
//! latency = 0.5e-6            # seconds per hop
//! [links.replicas]            # between the replicas of --roles; default: none
//! bandwidth = 50e9
//! latency = 3e-6
//! ```

use crate::io::failure::Failure;
use crate::options::sim_fleet::checked_link;
use kvasir_sim::{Arithmetic, Figure, Link, Links, MACHINES, Machine, Recorded, Source, WeightType};
use serde::Deserialize;
use std::path::Path;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    bandwidth: Spanned<f64>,
    memory: Spanned<f64>,
    weights: Option<String>,
    kv_bytes: Option<Spanned<f64>>,
    #[serde(default)]
    cpu: bool,
    name: Option<String>,
    source: Option<String>,
    arithmetic: Peaks,
    launch: Option<Launch>,
    #[serde(default)]
    links: LinkTables,
}

/// The tables `links.ranks` and `links.replicas`.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTables {
    ranks: Option<Spanned<LinkTable>>,
    replicas: Option<Spanned<LinkTable>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkTable {
    bandwidth: f64,
    latency: f64,
}

/// Operations per second by type of the weights.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peaks {
    bf16: Option<Spanned<f64>>,
    fp8: Option<Spanned<f64>>,
    int8: Option<Spanned<f64>>,
}

/// Launch costs in seconds. Without those of a graph, no step is recorded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Launch {
    kernel: Spanned<f64>,
    graph: Option<Spanned<f64>>,
    graph_kernel: Option<Spanned<f64>>,
    kernels_per_layer: Option<Spanned<f64>>,
}

/// Reads a machine, with weights of this type instead of the file's. Errors name the file, line, column
/// and key.
pub(crate) fn read(path: &Path, weights: Option<WeightType>) -> Result<Machine, Failure> {
    let named = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = Failure::read(path)?;
    let file = parsed(&text).map_err(named)?;
    let name = file.name.clone();
    let name = name.or_else(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    file.machine(&text, name.unwrap_or_default(), weights).map_err(named)
}

/// Parses a file. An error about a value's type names its key.
fn parsed(text: &str) -> Result<MachineFile, String> {
    toml::from_str(text).map_err(|error| {
        let why = error.message().trim().replace("expected f64", "expected a number");
        let location = error.span().map_or_else(String::new, |span| location(text, span.start));
        let at = error.span().filter(|_| why.starts_with("invalid type"));
        match at.and_then(|span| key_before(text, span.start)) {
            Some(key) => format!("{location}`{key}`: {why}"),
            None => format!("{location}{why}"),
        }
    })
}

/// Line and column of the byte at `offset`, as the prefix of an error message.
fn location(text: &str, offset: usize) -> String {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}: ")
}

/// The key whose value begins at this byte, with its table.
fn key_before(text: &str, at: usize) -> Option<String> {
    let before = text.get(..at)?;
    let (above, line) = before.rsplit_once('\n').unwrap_or(("", before));
    let key = line.trim_end().strip_suffix('=')?.trim_end();
    let key = key.rsplit(|c: char| c.is_whitespace() || "{,".contains(c)).next()?;
    let table = above.lines().rev().find_map(|line| line.trim().strip_prefix('[')?.split(']').next());
    Some(table.map_or_else(|| key.to_owned(), |table| format!("{table}.{key}")))
}

/// A number as in a machine file.
fn short(value: f64) -> String {
    if value.abs() < 1e5 { value.to_string() } else { format!("{value:e}") }
}

/// Smallest and largest value of a figure, and its unit. A value outside is mostly one in another unit, such
/// as Top/s; it also bounds how far one step advances the simulated clock.
struct Bounds {
    unit: &'static str,
    least: f64,
    most: f64,
}

const BYTES_PER_SECOND: Bounds = Bounds { unit: "bytes per second", least: 1e8, most: 1e17 };
const BYTES: Bounds = Bounds { unit: "bytes", least: 1e6, most: 1e17 };
const OPERATIONS_PER_SECOND: Bounds = Bounds { unit: "operations per second", least: 1e9, most: 1e20 };
const SECONDS: Bounds = Bounds { unit: "seconds", least: 0.0, most: 1.0 };
const KERNELS: Bounds = Bounds { unit: "kernels", least: 1.0, most: 1e6 };
const BYTES_PER_ELEMENT: Bounds = Bounds { unit: "bytes per element", least: 0.25, most: 16.0 };

impl MachineFile {
    fn machine(self, text: &str, name: String, weights: Option<WeightType>) -> Result<Machine, String> {
        let source = self.source.map_or(Source::User, |source| Source::Published(source.leak()));
        let figure = |what: &str, value: Spanned<f64>, Bounds { unit, least, most }: Bounds| {
            let (location, value) = (location(text, value.span().start), value.into_inner());
            if (least..=most).contains(&value) {
                Ok(Figure { value, source })
            } else {
                let [value, least, most] = [value, least, most].map(short);
                Err(format!("{location}`{what}` is {value}; it is in {unit}, from {least} to {most}"))
            }
        };
        let peak = |what, value: Option<Spanned<f64>>| {
            value.map(|value| figure(what, value, OPERATIONS_PER_SECOND)).transpose()
        };
        // The H200's launch costs are the only measured ones of a GPU.
        let default = MACHINES.iter().find(|known| known.name == "h200").ok_or("no machine `h200`")?;
        let on_h200 = |figure: Figure| Figure { source: Source::MeasuredOn(default.name), ..figure };
        let kernels_per_layer = default.kernels_per_layer;
        let (launch, recorded, kernels_per_layer) = match self.launch {
            Some(Launch { kernel, graph, graph_kernel, kernels_per_layer: kernels }) => {
                let recorded = match (graph, graph_kernel) {
                    (Some(graph), Some(kernel)) => Some(Recorded {
                        start: figure("launch.graph", graph, SECONDS)?,
                        kernel: figure("launch.graph_kernel", kernel, SECONDS)?,
                    }),
                    (None, None) => None,
                    _ => return Err("`launch.graph` and `launch.graph_kernel` need each other".into()),
                };
                let kernels = kernels.map(|n| figure("launch.kernels_per_layer", n, KERNELS)).transpose()?;
                (figure("launch.kernel", kernel, SECONDS)?, recorded, kernels.unwrap_or(kernels_per_layer))
            }
            None => {
                let recorded = default.recorded.map(|Recorded { start, kernel }| Recorded {
                    start: on_h200(start),
                    kernel: on_h200(kernel),
                });
                (on_h200(default.launch), recorded, kernels_per_layer)
            }
        };
        let link = |class: &str, table: Option<Spanned<LinkTable>>| {
            let Some(table) = table else { return Ok(None) };
            let location = location(text, table.span().start);
            let LinkTable { bandwidth, latency } = table.into_inner();
            let link = checked_link(bandwidth, latency)
                .map_err(|why| format!("{location}`links.{class}`: {why}"))?;
            let figure = |figure: Figure| Figure { source, ..figure };
            Ok::<_, String>(Some(Link { bandwidth: figure(link.bandwidth), latency: figure(link.latency) }))
        };
        let links = Links {
            ranks: link("ranks", self.links.ranks)?,
            replicas: link("replicas", self.links.replicas)?,
        };
        let own = self.weights.map_or(Ok(WeightType::Bf16), |name| WeightType::parse(&name))?;
        let weights = weights.unwrap_or(own);
        let machine = Machine {
            // Names are static because presets are copied freely; a run reads one file.
            name: name.leak(),
            bandwidth: figure("bandwidth", self.bandwidth, BYTES_PER_SECOND)?,
            arithmetic: Arithmetic {
                bf16: peak("arithmetic.bf16", self.arithmetic.bf16)?,
                fp8: peak("arithmetic.fp8", self.arithmetic.fp8)?,
                int8: peak("arithmetic.int8", self.arithmetic.int8)?,
            },
            memory: figure("memory", self.memory, BYTES)?,
            weights,
            is_cpu: self.cpu,
            kv_bytes: match self.kv_bytes {
                Some(bytes) => figure("kv_bytes", bytes, BYTES_PER_ELEMENT)?.value,
                None => 2.0,
            },
            launch,
            recorded,
            kernels_per_layer,
            links,
        };
        machine.with_weights(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Machine, String> {
        parsed(text)?.machine(text, "mine".into(), None)
    }

    const LEAST: &str = "bandwidth = 1e12\nmemory = 24e9\n";

    #[test]
    fn a_file_names_weights_sources_and_launch_costs() {
        let all = "weights = \"fp8\"\nsource = \"sheet\"\n[arithmetic]\nbf16 = 1e14\nfp8 = 2e14\n\
                   [launch]\nkernel = 1e-6\nkernels_per_layer = 8";
        let machine = parse(&format!("{LEAST}{all}")).unwrap();
        assert_eq!(machine.operations().value, 2e14);
        assert_eq!(machine.bandwidth.source, Source::Published("sheet"));
        assert_eq!((machine.launch.value, machine.recorded), (1e-6, None));
        assert_eq!(machine.links, Links::default());
        let machine = parse(&format!("{LEAST}[arithmetic]\nbf16 = 1e14")).unwrap();
        assert_eq!(machine.launch.source, Source::MeasuredOn("h200"));
        let links = "[links.replicas]\nbandwidth = 5e10\nlatency = 3e-6";
        let linked = parse(&format!("{LEAST}[arithmetic]\nbf16 = 1e14\n{links}")).unwrap();
        assert_eq!(linked.links.replicas, Some(Link::given(5e10, 3e-6)));
        assert!(machine.recorded.is_some() && machine.memory.source == Source::User);
    }

    #[test]
    fn weights_of_the_preset_replace_those_of_the_file() {
        let text = format!("{LEAST}[arithmetic]\nfp8 = 2e14");
        let with = |weights| parsed(&text).unwrap().machine(&text, "mine".into(), weights);
        assert_eq!(with(Some(WeightType::Fp8)).unwrap().operations().value, 2e14);
        assert!(with(None).unwrap_err().contains("no arithmetic for bf16; it has fp8"));
        assert!(with(Some(WeightType::Q8_0)).unwrap_err().contains("no arithmetic for q8_0; it has fp8"));
    }

    #[test]
    fn wrong_files_are_answered_with_the_key() {
        for (text, named) in [
            ("[arithmetic]\nint8 = 1e14", "no arithmetic for bf16; it has q8_0"),
            ("[arithmetic]\nbf16 = -1", "`arithmetic.bf16` is -1"),
            ("weights = \"int3\"\n[arithmetic]\nbf16 = 1e14", "bf16, fp8, q8_0"),
            ("speed = 3\n[arithmetic]\nbf16 = 1e14", "speed"),
            ("[arithmetic]\nbf16 = 1e14\n[launch]\nkernel = 1e-6\ngraph = 1e-6", "launch.graph_kernel"),
            ("", "arithmetic"),
            (
                "[arithmetic]\nbf16 = 989",
                "`arithmetic.bf16` is 989; it is in operations per second, from 1e9 to 1e20",
            ),
            ("[arithmetic]\nbf16 = inf", "`arithmetic.bf16` is inf"),
            ("kv_bytes = 17\n[arithmetic]\nbf16 = 1e14", "`kv_bytes` is 17; it is in bytes per element"),
            ("[arithmetic]\nbf16 = 1e14\n[launch]\nkernel = 3.6", "`launch.kernel` is 3.6; it is in seconds"),
            ("[arithmetic]\nbf16 = \"fast\"", "`arithmetic.bf16`: invalid type: string"),
            ("arithmetic = { fp8 = 1e14, bf16 = true }", "`bf16`: invalid type: boolean"),
            (
                "[arithmetic]\nbf16 = 1e14\n[links.ranks]\nbandwidth = 450\nlatency = 0",
                "line 5, column 1: `links.ranks`: bandwidth is 450",
            ),
            ("[arithmetic]\nbf16 = 1e14\n[links.ranks]\nbandwidth = 1e9", "latency"),
            ("[arithmetic]\nbf16 = 1e14\n[links.nodes]\nbandwidth = 1e9\nlatency = 0", "nodes"),
            ("[arithmetic]\nbf16 = 989", "line 4, column 8: `arithmetic.bf16`"),
            ("[arithmetic\nbf16 = 989", "line 3, column"),
            ("kv_bytes = \"2\"\n[arithmetic]\nbf16 = 1e14", "`kv_bytes`: invalid type"),
        ] {
            let error = parse(&format!("{LEAST}{text}")).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
