//! Machines of the roofline model: bandwidth, arithmetic, memory, launch overhead and links, each
//! with its source.
//!
//! Every figure of a built-in machine was measured or published; a test checks this. Published peaks
//! are those of data sheets, which no kernel reaches: times on such machines are lower bounds.

use crate::figure::{Figure, Source, measured, published};
use crate::link::{Link, Links};

/// Number type of weights and of the products with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightType {
    /// Two bytes per weight.
    Bf16,
    /// One byte per weight, floats of eight bits.
    Fp8,
    /// 34 bytes per 32 weights, products of eight-bit integers.
    Q8_0,
}

impl WeightType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::Bf16, Self::Fp8, Self::Q8_0];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Q8_0 => "q8_0",
        }
    }

    /// The type of this name. The error lists the known names.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|known| known.name() == name);
        found.ok_or_else(|| unknown("weight type", name, Self::ALL.into_iter().map(Self::name)))
    }

    /// Bytes per weight as stored.
    pub fn bytes(self) -> f64 {
        match self {
            Self::Bf16 => 2.0,
            Self::Fp8 => 1.0,
            Self::Q8_0 => 34.0 / 32.0,
        }
    }
}

/// Peak arithmetic by the type of the weights, in operations per second; `None` where the machine has
/// no arithmetic of that type.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Arithmetic {
    /// bf16 or f16.
    pub bf16: Option<Figure>,
    /// Eight-bit floats.
    pub fp8: Option<Figure>,
    /// Eight-bit integers.
    pub int8: Option<Figure>,
}

impl Arithmetic {
    /// The peak for weights of this type.
    pub fn of(&self, weights: WeightType) -> Option<Figure> {
        match weights {
            WeightType::Bf16 => self.bf16,
            WeightType::Fp8 => self.fp8,
            WeightType::Q8_0 => self.int8,
        }
    }

    pub(crate) const fn new(bf16: Figure) -> Self {
        Self { bf16: Some(bf16), fp8: None, int8: None }
    }
}

/// The limits of a machine, as the roofline model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: &'static str,
    /// Memory bandwidth for reading, in bytes per second.
    pub bandwidth: Figure,
    /// Peak arithmetic per number type.
    pub arithmetic: Arithmetic,
    /// Bytes of memory for weights and KV cache.
    pub memory: Figure,
    /// Type of the weights; a property of the simulated model, not of the machine.
    pub weights: WeightType,
    /// Whether it is a CPU, whose steps take fewer tokens by default.
    pub is_cpu: bool,
    /// Bytes per KV cache element.
    pub kv_bytes: f64,
    /// Seconds to launch one kernel.
    pub launch: Figure,
    /// Costs of a captured step (CUDA graph), where the machine supports it.
    pub recorded: Option<Recorded>,
    /// Kernels per layer.
    pub kernels_per_layer: Figure,
    /// Links between ranks and between replicas.
    pub links: Links,
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
    /// All figures with their names and units.
    pub fn figures(&self) -> Vec<(&'static str, &'static str, Figure)> {
        let recorded = self.recorded.map(|Recorded { start, kernel }| {
            [("start of a recorded step", "s", start), ("a kernel of a recorded step", "s", kernel)]
        });
        let always = [
            ("bandwidth", "B/s", self.bandwidth),
            ("arithmetic", "op/s", self.operations()),
            ("memory", "B", self.memory),
            ("start of a kernel", "s", self.launch),
            ("kernels of a layer", "", self.kernels_per_layer),
        ];
        always.into_iter().chain(recorded.into_iter().flatten()).collect()
    }

    /// Peak arithmetic for its weights, in operations per second. Infinite without any figure.
    pub fn operations(&self) -> Figure {
        self.arithmetic.of(self.weights).unwrap_or(Figure::given(f64::INFINITY))
    }

    /// The machine with weights of another type. The error names the types that it has.
    pub fn with_weights(self, weights: WeightType) -> Result<Self, String> {
        if self.arithmetic.of(weights).is_some() {
            return Ok(Self { weights, ..self });
        }
        let has = WeightType::ALL.into_iter().filter(|known| self.arithmetic.of(*known).is_some());
        let has: Vec<&str> = has.map(WeightType::name).collect();
        Err(format!("`{}` has no arithmetic for {}; it has {}", self.name, weights.name(), has.join(", ")))
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
/// - Bandwidth and arithmetic by `kvasir bench`: AMX, weights of 34 bytes per 32 dequantized to bf16
///   tiles.
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
///
/// All others: data sheets of their makers, dense arithmetic without sparsity, and the launch overhead of
/// the H200. Apple publishes one peak of its GPUs, for f32; f16 runs at the same rate.
pub const MACHINES: [Machine; 8] = [
    Machine {
        name: "cpu2-amx",
        bandwidth: measured(30.6e9),
        arithmetic: Arithmetic { bf16: None, fp8: None, int8: Some(measured(6.3e12)) },
        memory: measured(25.3e9),
        weights: WeightType::Q8_0,
        is_cpu: true,
        kv_bytes: 2.0,
        launch: measured(75e-9),
        recorded: None,
        kernels_per_layer: measured(10.0),
        links: Links { ranks: None, replicas: None },
    },
    Machine {
        name: "h200",
        bandwidth: measured(4.64e12),
        arithmetic: Arithmetic::new(measured(794e12)),
        memory: measured(149.5e9),
        weights: WeightType::Bf16,
        is_cpu: false,
        kv_bytes: 2.0,
        launch: measured(H200_LAUNCH),
        recorded: Some(Recorded { start: measured(H200_GRAPH.0), kernel: measured(H200_GRAPH.1) }),
        kernels_per_layer: published(100.0 / 16.0, KERNELS),
        links: Links {
            ranks: Some(link(450e9, H200, NVLINK_HOP)),
            replicas: Some(link(50e9, CONNECTX7, NETWORK_HOP)),
        },
    },
    Machine {
        links: Links {
            ranks: Some(link(300e9, A100, NVLINK_HOP)),
            replicas: Some(link(25e9, CONNECTX6, NETWORK_HOP)),
        },
        ..gpu("a100", A100, 2.039e12, 80e9, [312e12, 0.0, 624e12])
    },
    Machine {
        links: Links {
            ranks: Some(link(450e9, H100, NVLINK_HOP)),
            replicas: Some(link(50e9, CONNECTX7, NETWORK_HOP)),
        },
        ..gpu("h100", H100, 3.35e12, 80e9, [989.5e12, 1979e12, 1979e12])
    },
    Machine {
        links: Links { ranks: Some(link(32e9, L40S, PCIE_HOP)), replicas: None },
        ..gpu("l40s", L40S, 0.864e12, 48e9, [362.05e12, 733e12, 733e12])
    },
    gpu("mi300x", MI300X, 5.3e12, 192e9, [1307.4e12, 2614.9e12, 2614.9e12]),
    gpu("m1-max", M1_MAX, 0.4e12, 64e9, [10.4e12, 0.0, 0.0]),
    gpu("m1-ultra", M1_ULTRA, 0.8e12, 128e9, [20.8e12, 0.0, 0.0]),
];

/// A link: bytes per second by its data sheet, and seconds per hop by [`NCCL`].
const fn link(bandwidth: f64, data_sheet: &'static str, hop: f64) -> Link {
    Link { bandwidth: published(bandwidth, data_sheet), latency: published(hop, NCCL) }
}

/// Seconds per hop of a ring over NVLink, PCIe and a network.
const NVLINK_HOP: f64 = 0.47e-6;
const PCIE_HOP: f64 = 1.0e-6;
const NETWORK_HOP: f64 = 2.7e-6;
const NCCL: &str = "NCCL's tuning table (tuning.cc), ring, low-latency protocol";

/// Seconds to launch a kernel of the H200; to start a CUDA graph, and per kernel in it.
const H200_LAUNCH: f64 = 3.6e-6;
const H200_GRAPH: (f64, f64) = (1.3e-6, 0.73e-6);

const CONNECTX6: &str = "DGX A100 data sheet: a 200 Gb/s adapter per GPU";
const CONNECTX7: &str = "DGX H100 and H200 data sheets: a 400 Gb/s adapter per GPU";
const H200: &str = "NVIDIA H200 data sheet";
const A100: &str = "NVIDIA A100 80GB SXM data sheet";
const H100: &str = "NVIDIA H100 SXM data sheet, without sparsity";
const L40S: &str = "NVIDIA L40S data sheet, without sparsity";
const MI300X: &str = "AMD Instinct MI300X data sheet, without sparsity";
const M1_MAX: &str = "Apple on M1 Max, October 2021";
const M1_ULTRA: &str = "Apple on M1 Ultra, March 2022: two M1 Max";

/// A GPU by its data sheet: bandwidth, memory, and arithmetic in bf16, fp8 and int8 (0: none).
const fn gpu(
    name: &'static str,
    by: &'static str,
    bandwidth: f64,
    memory: f64,
    arithmetic: [f64; 3],
) -> Machine {
    const fn peak(value: f64, by: &'static str) -> Option<Figure> {
        if value > 0.0 { Some(published(value, by)) } else { None }
    }
    const fn as_h200(value: f64) -> Figure {
        Figure { value, source: Source::MeasuredOn("h200") }
    }
    Machine {
        name,
        bandwidth: published(bandwidth, by),
        arithmetic: Arithmetic {
            bf16: peak(arithmetic[0], by),
            fp8: peak(arithmetic[1], by),
            int8: peak(arithmetic[2], by),
        },
        memory: published(memory, by),
        weights: WeightType::Bf16,
        is_cpu: false,
        kv_bytes: 2.0,
        launch: as_h200(H200_LAUNCH),
        recorded: Some(Recorded { start: as_h200(H200_GRAPH.0), kernel: as_h200(H200_GRAPH.1) }),
        kernels_per_layer: published(100.0 / 16.0, KERNELS),
        links: Links { ranks: None, replicas: None },
    }
}

/// The error for an unknown name, with the known ones.
pub(crate) fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str>) -> String {
    format!("unknown {what} `{name}`; there are {}", known.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_of_a_machine_was_measured_or_published() {
        for machine in MACHINES {
            for (what, _, figure) in machine.figures() {
                assert_ne!(figure.source, Source::User, "{} {what}", machine.name);
                assert!(figure.value > 0.0, "{} {what}", machine.name);
            }
            let links = [machine.links.ranks, machine.links.replicas].into_iter().flatten();
            for figure in links.flat_map(|link| [link.bandwidth, link.latency]) {
                assert!(figure.source != Source::User && figure.value > 0.0, "{}", machine.name);
            }
            assert!(machine.with_weights(machine.weights).is_ok(), "{}", machine.name);
        }
    }
}
