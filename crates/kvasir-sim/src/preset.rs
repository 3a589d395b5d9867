//! Machine limits for the roofline model: bandwidth, arithmetic, memory and launch overhead, each
//! with its source.
//!
//! `Preset::parse` reads `--sim-preset MACHINE:SHAPE`. Every figure of a built-in machine was
//! measured or published; a test checks this.

use crate::shape::Shape;
use std::fmt;

/// The origin of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Measured by this project, on such a machine.
    Measured,
    /// Published by others, named here.
    Published(&'static str),
    /// Given by the user (`fixed:5ms`) or by convention.
    User,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured => write!(f, "measured"),
            Self::Published(by) => write!(f, "published: {by}"),
            Self::User => write!(f, "given"),
        }
    }
}

/// A number with its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The value, in the unit of the field that holds it.
    pub value: f64,
    /// Its source.
    pub source: Source,
}

const fn measured(value: f64) -> Figure {
    Figure { value, source: Source::Measured }
}

const fn published(value: f64, by: &'static str) -> Figure {
    Figure { value, source: Source::Published(by) }
}

const fn given(value: f64) -> Figure {
    Figure { value, source: Source::User }
}

/// The limits of a machine, as the roofline model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// Memory bandwidth for reading, in bytes per second.
    pub bandwidth: Figure,
    /// Peak arithmetic in operations per second, for the number type of its weights.
    pub operations: Figure,
    /// Bytes of memory for weights and KV cache.
    pub memory: Figure,
    /// Bytes per weight as stored; a property of the simulated model, not of the machine.
    pub weight_bytes: f64,
    /// Bytes per KV cache element.
    pub kv_bytes: f64,
    /// Seconds to launch one kernel.
    pub launch: Figure,
    /// Costs of a captured step (CUDA graph), where the machine supports it.
    pub recorded: Option<Recorded>,
    /// Kernels per layer.
    pub kernels_per_layer: Figure,
}

/// Overhead of a captured step (CUDA graph), beside its bytes and operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// Seconds to launch the graph.
    pub start: Figure,
    /// Minimum seconds per kernel inside the graph.
    pub kernel: Figure,
}

impl Machine {
    /// All figures with their names.
    pub fn figures(&self) -> Vec<(&'static str, Figure)> {
        let recorded = self.recorded.map(|Recorded { start, kernel }| {
            [("start of a recorded step", start), ("a kernel of a recorded step", kernel)]
        });
        let always = [
            ("bandwidth", self.bandwidth),
            ("arithmetic", self.operations),
            ("memory", self.memory),
            ("start of a kernel", self.launch),
            ("kernels of a layer", self.kernels_per_layer),
        ];
        always.into_iter().chain(recorded.into_iter().flatten()).collect()
    }

    /// Launch overhead in seconds of a step of `layers` layers.
    pub(crate) fn start(&self, layers: u32, is_recorded: bool) -> f64 {
        let kernels = self.kernels_per_layer.value * f64::from(layers);
        match self.recorded {
            Some(Recorded { start, kernel }) if is_recorded => start.value + kernel.value * kernels,
            _ => self.launch.value * kernels,
        }
    }
}

/// <https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles>: vLLM and SGLang run the 16
/// layers of Llama-3.2-1B as about a hundred kernels.
const KERNELS: &str = "Hazy Research on megakernels, about 100 kernels for 16 layers";

/// The machines known by name.
///
/// CPU (`cpu2-amx`), all measured with two threads:
///
/// - Bandwidth and arithmetic (AMX, int8 weights of 34 bytes per 32) by `kvasir bench`.
/// - Launch overhead as the time of 200,000 empty fork-join tasks in sequence.
/// - Kernels per layer as the tasks of two steps of the built-in model, LM head included, divided
///   by its layers.
/// - Memory as all that the system has.
///
/// H200, all measured by `probe/device.cu` except the kernels per layer:
///
/// - Bandwidth of reading alone.
/// - Arithmetic of bf16 GEMM for 2,048 tokens; it falls to 690 TOPS under sustained load.
/// - Memory that is free beside a CUDA context.
/// - Launch overhead as the host's time per kernel, over about a hundred kernels, and per graph
///   launch of as many. Such a kernel reads, increments and writes one number.
pub const MACHINES: [Machine; 2] = [
    Machine {
        name: "cpu2-amx",
        bandwidth: measured(30.6e9),
        operations: measured(12.5e12),
        memory: measured(25.3e9),
        weight_bytes: 34.0 / 32.0,
        kv_bytes: 2.0,
        launch: measured(75e-9),
        recorded: None,
        kernels_per_layer: measured(10.0),
    },
    Machine {
        name: "h200",
        bandwidth: measured(4.64e12),
        operations: measured(794e12),
        memory: measured(149.5e9),
        weight_bytes: 2.0,
        kv_bytes: 2.0,
        launch: measured(3.6e-6),
        recorded: Some(Recorded { start: measured(1.3e-6), kernel: measured(0.73e-6) }),
        kernels_per_layer: published(100.0 / 16.0, KERNELS),
    },
];

/// A machine and a model: `--sim-preset MACHINE:SHAPE`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// The machine's limits.
    pub machine: Machine,
    /// The model's shape.
    pub shape: Shape,
}

impl Preset {
    /// Parses `h200:qwen3-14b`, `instant` or `fixed:5ms`. The error lists the known names.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "instant" {
            return Ok(Self::fixed(0.0));
        }
        if let Some(time) = text.strip_prefix("fixed:") {
            let milliseconds = time.strip_suffix("ms").and_then(|n| n.parse::<f64>().ok());
            return milliseconds
                .filter(|ms| (0.0..=60_000.0).contains(ms))
                .map(|ms| Self::fixed(ms / 1e3))
                .ok_or_else(|| format!("`{time}` is not a time like 5ms"));
        }
        let (machine, shape) = text.split_once(':').unwrap_or((text, "qwen3-0.6b"));
        let found = MACHINES.iter().find(|known| known.name == machine).copied();
        match (found, Shape::named(shape)) {
            (Some(machine), Some(shape)) => Ok(Self { machine, shape }),
            (None, _) => Err(unknown(
                "machine",
                machine,
                MACHINES.iter().map(|known| known.name).chain(["instant", "fixed:5ms"]),
            )),
            (_, None) => Err(unknown("shape", shape, crate::shape::SHAPES.iter().map(|known| known.name))),
        }
    }

    /// A device on which every step takes this long.
    fn fixed(seconds: f64) -> Self {
        let shape = crate::shape::SHAPES[0];
        let machine = Machine {
            name: "fixed",
            bandwidth: given(f64::INFINITY),
            operations: given(f64::INFINITY),
            memory: given(64e9),
            weight_bytes: 2.0,
            kv_bytes: 2.0,
            launch: given(seconds / f64::from(shape.layers)),
            recorded: Some(Recorded { start: given(seconds), kernel: given(0.0) }),
            kernels_per_layer: given(1.0),
        };
        Self { machine, shape }
    }

    /// KV slots that fit into `share` of the memory left beside the weights.
    pub fn slots(&self, share: f64) -> u32 {
        let Machine { memory, weight_bytes, kv_bytes, .. } = self.machine;
        let weights = self.shape.layer_weights() + self.shape.head_weights() + self.shape.table_weights();
        let weights = weights * weight_bytes;
        let left = (memory.value - weights).max(0.0) * share;
        (left / (self.shape.kv_values() * kv_bytes)) as u32
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.machine.name, self.shape.name)
    }
}

fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str>) -> String {
    format!("unknown {what} `{name}`; there are {}", known.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_have_the_size_in_their_names() {
        for (name, billions) in
            [("qwen3-0.6b", 0.6), ("qwen3-14b", 14.8), ("llama-3-8b", 8.0), ("llama-3.2-1b", 1.2)]
        {
            let shape = Shape::named(name).unwrap();
            let size = (shape.layer_weights() + shape.head_weights() + shape.table_weights()) / 1e9;
            assert!((size / billions - 1.0).abs() < 0.05, "{name}: {size}");
        }
    }

    #[test]
    fn every_figure_of_a_machine_was_measured_or_published() {
        for machine in MACHINES {
            for (what, figure) in machine.figures() {
                assert_ne!(figure.source, Source::User, "{} {what}", machine.name);
                assert!(figure.value > 0.0, "{} {what}", machine.name);
            }
        }
    }

    #[test]
    fn a_pool_gets_its_share_of_free_memory() {
        let preset = Preset::parse("h200:qwen3-14b").unwrap();
        // 40 layers, 8 KV heads of 128, K and V, two bytes each; 14.8 billion weights of two bytes,
        // embedding table included.
        let all = f64::from(preset.slots(1.0)) * (40 * 8 * 128 * 2 * 2) as f64;
        assert!((all / (149.5e9 - 29.5e9) - 1.0).abs() < 0.01, "{all}");
        assert_eq!(preset.slots(0.5), preset.slots(1.0) / 2);
        let mut small = preset;
        small.machine.memory = given(20e9);
        assert_eq!(small.slots(0.9), 0, "no room beside the weights");
    }

    #[test]
    fn a_wrong_name_is_answered_with_the_right_ones() {
        assert!(Preset::parse("h200:qwen3-14b").is_ok());
        assert!(Preset::parse("h100").unwrap_err().contains("cpu2-amx, h200"));
        assert!(Preset::parse("instant").is_ok() && Preset::parse("fixed:2.5ms").is_ok());
        assert!(Preset::parse("fixed:2").is_err() && Preset::parse("fixed:-1ms").is_err());
        assert!(Preset::parse("h200:gpt").unwrap_err().contains("qwen3-0.6b"));
    }
}
