//! Each tensor-parallel rank and each expert-parallel replica reads and packs only the weights of
//! its shard.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{CpuModel, Nibbles, Precision, Scaled, Stored, ThreadPool, WeightSource};
use kvasir_formats::{Checkpoint, DType, Error};
use kvasir_program::{Matrix, Model, Op, Program, Role};
use kvasir_testkit::paths::model;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A checkpoint that records the stored rows that are read.
struct Recorder {
    checkpoint: Checkpoint,
    rows: Mutex<BTreeMap<String, BTreeSet<usize>>>,
}

impl Recorder {
    fn read(&self, name: &str, rows: impl IntoIterator<Item = usize>) {
        self.rows.lock().unwrap().entry(name.to_owned()).or_default().extend(rows);
    }

    fn recorded<'a>(&'a self, name: &'a str, stored: Stored<'a>) -> Stored<'a> {
        let read = stored.row;
        let row = move |n: usize| {
            self.read(name, [n]);
            read(n)
        };
        Stored { row: Box::new(row), ..stored }
    }
}

impl WeightSource for Recorder {
    fn stored<'a>(&'a self, name: &'a str, shape: &'a [usize]) -> Result<Option<Stored<'a>>, Error> {
        Ok(self.checkpoint.stored(name, shape)?.map(|stored| self.recorded(name, stored)))
    }

    fn scaled<'a>(&'a self, name: &'a str) -> Result<Option<Scaled<'a>>, Error> {
        let scaled = self.checkpoint.scaled(name)?;
        Ok(scaled.map(|scaled| Scaled { codes: self.recorded(name, scaled.codes), ..scaled }))
    }

    fn nibbles<'a>(&'a self, name: &'a str) -> Result<Option<Nibbles<'a>>, Error> {
        Ok(self.checkpoint.nibbles(name)?.map(|nibbles| {
            let read = nibbles.row;
            let row = move |n: usize| {
                self.read(name, [n]);
                read(n)
            };
            Nibbles { row: Box::new(row), ..nibbles }
        }))
    }

    fn dtype(&self, name: &str, shape: &[usize]) -> Result<Option<DType>, Error> {
        self.checkpoint.dtype(name, shape)
    }

    fn dense(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        self.read(name, 0..shape.iter().rev().skip(1).product());
        WeightSource::dense(&self.checkpoint, name, shape)
    }

    fn row(&self, name: &str, shape: &[usize], n: usize, out: &mut [f32]) -> Result<(), Error> {
        self.read(name, [n]);
        WeightSource::row(&self.checkpoint, name, shape, n, out)
    }

    fn reads_in_place(&self) -> bool {
        true
    }
}

/// Stored rows of each weight that the ops of a program multiply or look up.
fn own_rows(program: &Program) -> BTreeMap<&str, BTreeSet<usize>> {
    let mut rows: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    let mut matrix = |m: Matrix| {
        let weight = program.weight(program.resolve(m.weight));
        let row_len = *weight.shape.last().unwrap();
        let own = rows.entry(&weight.name).or_default();
        for first in (0..m.outputs).map(|output| m.offset + output * m.output_stride) {
            let last = first + (m.inputs - 1) * m.input_stride;
            own.extend(first / row_len..=last / row_len);
        }
        if let Some(bias) = m.bias {
            let weight = program.weight(program.resolve(bias.weight));
            let row_len = *weight.shape.last().unwrap();
            rows.entry(&weight.name).or_default().insert(bias.offset / row_len);
        }
    };
    for op in &program.ops {
        match op {
            Op::Linear { matrix: m, .. } | Op::Head { matrix: m, .. } => matrix(*m),
            Op::GroupLinear { matrices, .. } => (0..matrices.count).for_each(|n| matrix(matrices.nth(n))),
            Op::Mixture { experts, .. } => {
                for family in [&experts.gate, &experts.up, &experts.down] {
                    (0..family.count).for_each(|n| matrix(family.nth(n)));
                }
            }
            _ => {}
        }
    }
    rows
}

/// What loading and packing a part of a model has read.
struct PartReads {
    /// Number of weights of which some rows are not read.
    partial_weights: usize,
    packed_bytes: usize,
}

/// Loads and packs a part of a model, and checks that no other rows are read.
fn read_part(name: &str, whole: &Program, part: &Program) -> PartReads {
    let checkpoint = Checkpoint::open(&model(name)).unwrap();
    let source = Arc::new(Recorder { checkpoint, rows: Mutex::default() });
    let threads = Arc::new(ThreadPool::new(1));
    let loaded = CpuModel::load(part, source.clone(), Precision::Auto, threads).unwrap();
    loaded.pack().unwrap();
    let (own, read) = (own_rows(part), source.rows.lock().unwrap());
    let mut partial_weights = 0;
    for (weight, read) in read.iter() {
        let shape = &whole.weights.iter().find(|w| w.name == *weight).unwrap().shape;
        let Some(own) = own.get(weight.as_str()) else { continue };
        // The first row of an embedding table is read as a probe.
        let probe = whole.weights.iter().any(|w| w.name == *weight && w.role == Role::Embedding);
        let others = read.difference(own).filter(|row| !(probe && **row == 0)).count();
        assert_eq!(others, 0, "{name} {:?} {:?}: {weight} {shape:?}", part.shard, part.expert_shard);
        partial_weights += usize::from(own.len() < shape.iter().rev().skip(1).product());
    }
    PartReads { partial_weights, packed_bytes: loaded.packed_bytes() }
}

fn target(name: &str) -> Program {
    Model::build(&Checkpoint::open(&model(name)).unwrap().source()).unwrap().target
}

#[test]
fn a_rank_reads_only_the_rows_of_its_shard() {
    for name in ["qwen3_bf16", "llama", "phi3", "mixtral", "deepseek_v3", "deepseek_v3_fp8", "gpt_oss"] {
        let whole = target(name);
        for rank in 0..2 {
            let partial = read_part(name, &whole, &whole.for_rank(rank, 2).unwrap()).partial_weights;
            assert!(partial > 4, "{name}: only {partial} weights are read in part");
        }
    }
}

#[test]
fn a_replica_reads_and_packs_its_own_experts_only() {
    for name in ["mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss"] {
        let whole = target(name);
        let packed_bytes = |part: &Program| read_part(name, &whole, part).packed_bytes;
        let all = packed_bytes(&whole);
        let parts = [0, 1].map(|replica| packed_bytes(&whole.for_replica(replica, 2).unwrap()));
        // Both parts together have each expert once, and all other weights twice.
        let experts = 2 * all - parts[0] - parts[1];
        assert!(parts[0] == parts[1] && experts * 3 > all, "{name}: {parts:?} of {all} bytes");
    }
}
