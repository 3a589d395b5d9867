use crate::Shape;
use std::fmt;

/// Where a figure is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// By us, on such a machine.
    Measured,
    /// By others, who are named.
    Published(&'static str),
    /// By whoever asked for a device of such a speed.
    Given,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured => write!(f, "measured"),
            Self::Published(by) => write!(f, "published: {by}"),
            Self::Given => write!(f, "given"),
        }
    }
}

/// A number and where it is from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Its origin.
    pub source: Source,
}

const fn measured(value: f64) -> Figure {
    Figure { value, source: Source::Measured }
}

const fn published(value: f64, by: &'static str) -> Figure {
    Figure { value, source: Source::Published(by) }
}

const fn given(value: f64) -> Figure {
    Figure { value, source: Source::Given }
}

/// A machine as the roofline sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// Bytes per second from memory.
    pub bandwidth: Figure,
    /// Operations per second of the kind that the weights are multiplied with.
    pub operations: Figure,
    /// Bytes of memory that a model and its cache may take.
    pub memory: Figure,
    /// Bytes of one weight as stored: what is run there, no figure of the machine.
    pub weight_bytes: f64,
    /// Bytes of one value in the cache.
    pub kv_bytes: f64,
    /// Seconds of starting one kernel.
    pub launch: Figure,
    /// What a recorded step costs, where steps can be recorded.
    pub recorded: Option<Recorded>,
    /// Kernels of one layer.
    pub kernels_per_layer: Figure,
}

/// What a recorded step costs beside its bytes and operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recorded {
    /// Seconds of starting it.
    pub start: Figure,
    /// Seconds that each of its kernels takes however little it does, after the one before it.
    pub kernel: Figure,
}

impl Machine {
    /// Every figure of it with its name.
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

    /// Seconds of starting a step of `layers` and its kernels.
    pub(crate) fn start(&self, layers: u32, is_recorded: bool) -> f64 {
        let kernels = self.kernels_per_layer.value * f64::from(layers);
        match self.recorded {
            Some(Recorded { start, kernel }) if is_recorded => start.value + kernel.value * kernels,
            _ => self.launch.value * kernels,
        }
    }
}

/// <https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles>: vLLM and SGLang run the 16 layers of Llama-3.2-1B as about a hundred kernels.
const KERNELS: &str = "Hazy Research on megakernels, about 100 kernels for 16 layers";

/// The machines that are known by name.
///
/// Of the CPU everything was measured, with two threads: bandwidth and arithmetic (AMX, int8 weights of 34 bytes per 32) by `kvasir bench`;
/// the start of work on its threads as that of 200,000 empty pieces of work, one after the other; the kernels of a layer as the pieces of work in
/// which two steps of the built-in model ran, head included, over its layers; memory is all that the system has.
///
/// Of the H200 everything but the kernels of a layer, by `probe/device.cu`: bandwidth is of reading alone; arithmetic that of bf16 products for 2,048
/// tokens, which falls to 690 TOPS when nothing else is done for seconds; memory what is free beside a context. Starts are the host's time for one of
/// some hundred kernels and for a recorded step of as many; such a kernel reads, adds to and writes one number.
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

/// `--sim-preset MACHINE:SHAPE`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Preset {
    /// The machine.
    pub machine: Machine,
    /// The model.
    pub shape: Shape,
}

impl Preset {
    /// Reads `h200:qwen3-14b`, `instant` or `fixed:5ms`. The error lists what there is.
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
            (_, None) => Err(unknown("shape", shape, crate::SHAPES.iter().map(|known| known.name))),
        }
    }

    /// A device whose every step takes this long, whatever is in it.
    fn fixed(seconds: f64) -> Self {
        let shape = crate::SHAPES[0];
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

    /// Slots that `share` of the memory beside the weights holds.
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
                assert_ne!(figure.source, Source::Given, "{} {what}", machine.name);
                assert!(figure.value > 0.0, "{} {what}", machine.name);
            }
        }
    }

    #[test]
    fn a_pool_takes_its_share_of_what_the_weights_leave() {
        let preset = Preset::parse("h200:qwen3-14b").unwrap();
        // 40 layers of 8 heads, 128 wide, K and V, two bytes each; 14.8 billion weights of two bytes, the table that no step reads whole among them.
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
