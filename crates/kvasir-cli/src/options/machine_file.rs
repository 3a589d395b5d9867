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
//! ```

use crate::io::failure::Failure;
use kvasir_sim::{Arithmetic, Figure, MACHINES, Machine, Recorded, Source, WeightType};
use serde::Deserialize;
use std::path::Path;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    bandwidth: f64,
    memory: f64,
    weights: Option<String>,
    kv_bytes: Option<f64>,
    #[serde(default)]
    cpu: bool,
    name: Option<String>,
    source: Option<String>,
    arithmetic: Peaks,
    launch: Option<Launch>,
}

/// Operations per second by type of the weights.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Peaks {
    bf16: Option<f64>,
    fp8: Option<f64>,
    int8: Option<f64>,
}

/// Launch costs in seconds. Without those of a graph, no step is recorded.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Launch {
    kernel: f64,
    graph: Option<f64>,
    graph_kernel: Option<f64>,
    kernels_per_layer: Option<f64>,
}

/// Reads a machine. Errors name the file and the value.
pub(crate) fn read(path: &Path) -> Result<Machine, Failure> {
    let named = |why: String| Failure::usage(format!("{}: {why}", path.display()));
    let text = Failure::read(path)?;
    let file = toml::from_str::<MachineFile>(&text).map_err(|error| named(error.message().trim().into()))?;
    let name = file.name.clone();
    let name = name.or_else(|| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    file.machine(name.unwrap_or_default()).map_err(named)
}

impl MachineFile {
    fn machine(self, name: String) -> Result<Machine, String> {
        let source = self.source.map_or(Source::User, |source| Source::Published(source.leak()));
        let figure = |what: &str, value: f64, least: f64| match value.is_finite() && value >= least {
            true => Ok(Figure { value, source }),
            false => Err(format!("`{what}` is {value}; it must be a number of at least {least}")),
        };
        let peak = |what, value: Option<f64>| value.map(|value| figure(what, value, 1.0)).transpose();
        // The H200's launch costs are the only measured ones of a GPU.
        let default = MACHINES.iter().find(|known| known.name == "h200").ok_or("no machine `h200`")?;
        let on_h200 = |figure: Figure| Figure { source: Source::MeasuredOn(default.name), ..figure };
        let kernels_per_layer = default.kernels_per_layer;
        let (launch, recorded, kernels_per_layer) = match self.launch {
            Some(Launch { kernel, graph, graph_kernel, kernels_per_layer: kernels }) => {
                let recorded = match (graph, graph_kernel) {
                    (Some(graph), Some(kernel)) => Some(Recorded {
                        start: figure("launch.graph", graph, 0.0)?,
                        kernel: figure("launch.graph_kernel", kernel, 0.0)?,
                    }),
                    (None, None) => None,
                    _ => return Err("`launch.graph` and `launch.graph_kernel` need each other".into()),
                };
                let kernels = kernels.map(|n| figure("launch.kernels_per_layer", n, 1.0)).transpose()?;
                (figure("launch.kernel", kernel, 0.0)?, recorded, kernels.unwrap_or(kernels_per_layer))
            }
            None => {
                let recorded = default.recorded.map(|Recorded { start, kernel }| Recorded {
                    start: on_h200(start),
                    kernel: on_h200(kernel),
                });
                (on_h200(default.launch), recorded, kernels_per_layer)
            }
        };
        let weights = self.weights.map_or(Ok(WeightType::Bf16), |name| WeightType::parse(&name))?;
        let machine = Machine {
            // Names are static because presets are copied freely; a run reads one file.
            name: name.leak(),
            bandwidth: figure("bandwidth", self.bandwidth, 1.0)?,
            arithmetic: Arithmetic {
                bf16: peak("arithmetic.bf16", self.arithmetic.bf16)?,
                fp8: peak("arithmetic.fp8", self.arithmetic.fp8)?,
                int8: peak("arithmetic.int8", self.arithmetic.int8)?,
            },
            memory: figure("memory", self.memory, 1.0)?,
            weights,
            is_cpu: self.cpu,
            kv_bytes: figure("kv_bytes", self.kv_bytes.unwrap_or(2.0), 0.25)?.value,
            launch,
            recorded,
            kernels_per_layer,
        };
        machine.with_weights(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Machine, String> {
        let file = toml::from_str::<MachineFile>(text).map_err(|error| error.message().to_owned())?;
        file.machine("mine".into())
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
        let machine = parse(&format!("{LEAST}[arithmetic]\nbf16 = 1e14")).unwrap();
        assert_eq!(machine.launch.source, Source::MeasuredOn("h200"));
        assert!(machine.recorded.is_some() && machine.memory.source == Source::User);
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
        ] {
            let error = parse(&format!("{LEAST}{text}")).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
