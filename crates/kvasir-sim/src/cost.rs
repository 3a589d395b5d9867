//! [`CostDevice`]: a roofline model of a device, in simulated time.
//!
//! `time = max(bytes / bandwidth, operations / peak) + launch overhead + collectives`.
//!
//! - Bytes: weights once per step, plus K and V read and written.
//! - Operations: two per weight and token (LM head: per sampled token), plus attention.
//! - Launch overhead: per kernel, or one CUDA graph launch for decode steps up to the largest
//!   captured batch.
//!
//! Steps run back to back in submission order while the host continues, as on an asynchronous GPU
//! stream. Nothing is computed. Guarded by the tests of this module.

use crate::clock::Clock;
use crate::draft::DraftProfile;
use crate::fault::{Faults, Injector, StepOutcome};
use crate::output_source::OutputSource;
use crate::preset::Preset;
use crate::rectangle::StaticShape;
use crate::step_work::Load;
use kvasir_exec::{
    Abilities, Executor, KvAccess, KvLayout, KvRows, NoKvAccess, OutputRow, PoolRow, Refused, SequenceSpec,
    Step, StepError, StepKind,
};
use kvasir_kv::{Slot, Span};
use std::collections::VecDeque;

/// Totals over all steps so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Device time in nanoseconds.
    pub busy_ns: u64,
    /// Bytes moved: weights once per step, K and V as read and written.
    pub bytes: f64,
    /// Arithmetic operations; a multiply-add counts as two.
    pub operations: f64,
    /// Number of steps.
    pub steps: u64,
}

impl std::ops::AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.busy_ns += other.busy_ns;
        self.bytes += other.bytes;
        self.operations += other.operations;
        self.steps += other.steps;
    }
}

/// A submitted step.
struct InFlight {
    step: Box<Step>,
    /// Nanoseconds of the target and of the draft model.
    times: (u64, u64),
    done: u64,
}

/// A simulated device that takes as long as a real one would, by the roofline model.
///
/// A step takes the longer of its memory time and its arithmetic time, plus the time to launch it:
/// kernel by kernel, or as one CUDA graph for captured decode steps. Output tokens come from
/// [`OutputSource`], so a draft is accepted if it equals the output token.
pub struct CostDevice {
    preset: Preset,
    clock: Clock,
    answers: Box<dyn OutputSource>,
    rows: Vec<(u64, u32, u32)>,
    queue: VecDeque<InFlight>,
    next: u64,
    /// Simulated time at which all submitted steps are done.
    free_at: u64,
    faults: Injector,
    graph_max_batch: u32,
    shape: Option<StaticShape>,
    draft: Option<DraftProfile>,
    spent: Totals,
}

impl CostDevice {
    /// A device without faults that has CUDA graphs for decode steps of up to 256 rows.
    pub fn new(preset: Preset, clock: Clock, answers: Box<dyn OutputSource>) -> Self {
        Self {
            preset,
            clock,
            answers,
            rows: Vec::new(),
            queue: VecDeque::new(),
            next: 0,
            free_at: 0,
            faults: Injector::new(Faults::default()),
            graph_max_batch: 256,
            shape: None,
            draft: None,
            spent: Totals::default(),
        }
    }

    /// Injects faults.
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = Injector::new(faults);
        self
    }

    /// Sets the largest decode batch with a CUDA graph; 0 disables graphs.
    pub fn with_graphs(mut self, max_batch: u32) -> Self {
        self.graph_max_batch = max_batch;
        self
    }

    /// Makes it a device of static shapes: a step costs its padded size, and a step that does not
    /// fit loses the device.
    pub fn with_static_shapes(mut self, shape: StaticShape) -> Self {
        self.shape = Some(shape);
        self
    }

    /// Adds a draft model. It proposes a chain of
    /// [`BatchRow::draft_depth`](kvasir_exec::BatchRow::draft_depth) tokens per row.
    pub fn with_draft(mut self, draft: DraftProfile) -> Self {
        self.draft = Some(draft);
        self
    }

    /// Totals over all steps so far.
    pub fn spent(&self) -> Totals {
        self.spent
    }

    /// The machine and model that it simulates.
    pub fn preset(&self) -> &Preset {
        &self.preset
    }

    /// Nanoseconds of a step, and of the draft model after it; adds them to the totals.
    fn cost(&mut self, step: &Step) -> (u64, u64) {
        let recorded =
            step.batch.kind == StepKind::Decode && step.batch.rows.len() <= self.graph_max_batch as usize;
        let load = Load::of(step, self.shape);
        let took = self.pass(self.preset, &load, step.plan.moves.len(), recorded).max(1);
        self.spent.steps += 1;
        let passes = self.draft.as_ref().map(|draft| (draft.preset(&self.preset), draft.work(step)));
        let Some((preset, work)) = passes else { return (took, 0) };
        let mut drafted = 0;
        for (passes, load) in work {
            drafted += (0..passes).map(|_| self.pass(preset, &load, 0, recorded)).sum::<u64>();
        }
        (took, drafted)
    }

    /// Nanoseconds of one forward pass; adds its bytes and operations to the totals.
    fn pass(&mut self, preset: Preset, load: &Load, slot_copies: usize, recorded: bool) -> u64 {
        let pass = preset.pass(load, slot_copies, recorded);
        let ns = (pass.seconds * 1e9) as u64;
        self.spent.bytes += pass.bytes;
        self.spent.operations += pass.operations;
        self.spent.busy_ns += ns;
        ns
    }

    /// Fills in the output tokens. Nothing is computed.
    fn answer(&self, step: &mut Step) {
        let Step { batch, output, .. } = step;
        output.reset();
        if batch.is_dummy() {
            return output.rows.resize(batch.rows.len(), OutputRow::default());
        }
        for row in &batch.rows {
            let start = output.tokens.len();
            let (seed, prompt, dropped) = self.rows.get(row.pool_row.0 as usize).copied().unwrap_or_default();
            for query in row.sample_from..row.tokens.len {
                let position = dropped + row.context_len - row.tokens.len + query + 1;
                output.tokens.push(self.answers.token(seed, position.saturating_sub(prompt)));
            }
            output.rows.push(OutputRow { tokens: Span::new(start, output.tokens.len() - start) });
        }
        if let Some(draft) = &self.draft {
            self.propose(draft, step);
        }
    }

    /// Fills in the proposals of the draft model.
    fn propose(&self, draft: &DraftProfile, step: &mut Step) {
        let mut accepted = Vec::new();
        for i in 0..step.batch.rows.len() {
            let row = step.batch.rows[i];
            if row.draft_depth == 0 || !row.samples() {
                continue;
            }
            accepted.clear();
            step.accepted(i, &mut accepted);
            let (seed, prompt, dropped) = self.rows.get(row.pool_row.0 as usize).copied().unwrap_or_default();
            let known = dropped + row.context_len - row.drafts.count + accepted.len() as u32;
            draft.propose(step, i, (seed, known.saturating_sub(prompt)), &*self.answers);
        }
    }
}

impl Executor for CostDevice {
    type Pending = u64;

    fn abilities(&self) -> Abilities {
        Abilities::all(2, u32::MAX, u32::MAX)
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        let at = row.0 as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, (0, 0, 0));
        }
        self.rows[at] = (spec.sampling.seed, spec.prompt.len() as u32, spec.dropped);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<u64, Refused> {
        if let Some(Err(why)) = self.shape.map(|shape| shape.check(&step)) {
            let error = StepError::Lost(format!("step {} has no static shape: {why}", step.batch.step.0));
            return Err(Refused { step, error });
        }
        if let Err(error) = self.faults.submit() {
            return Err(Refused { step, error });
        }
        let times = self.cost(&step);
        self.free_at = self.free_at.max(self.clock.now()) + times.0 + times.1;
        let ticket = self.next;
        self.next += 1;
        self.queue.push_back(InFlight { step, times, done: self.free_at });
        Ok(ticket)
    }

    fn wait(&mut self, _pending: u64) -> (Box<Step>, Result<(), StepError>) {
        let Some(InFlight { mut step, times: (took, drafted), done }) = self.queue.pop_front() else {
            return (Box::default(), Err(StepError::Lost("nothing was submitted".into())));
        };
        step.output.reset();
        self.clock.advance(done);
        match self.faults.complete() {
            StepOutcome::Lost(error) => return (step, Err(error)),
            StepOutcome::Failed { error, .. } => return (step, Err(error)),
            StepOutcome::Late => self.clock.advance(done + took * 10),
            StepOutcome::InTime => {}
        }
        self.answer(&mut step);
        step.output.device_ns = took;
        step.output.draft_ns = drafted;
        (step, Ok(()))
    }

    fn kv_layout(&self) -> Result<KvLayout, NoKvAccess> {
        Ok(KvLayout { format: "cost model".into(), slot_bytes: self.slot_bytes() })
    }

    fn access_kv(&mut self, access: KvAccess) {
        access(self);
    }
}

/// K/V rows have no bytes, since no K and V are computed. The caller models the time of a transfer.
impl KvRows for CostDevice {
    fn slot_bytes(&self) -> usize {
        0
    }

    fn read(&self, _: Slot, _: &mut [u8]) {}

    fn write(&mut self, _: Slot, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step_time::StepBreakdown;
    use kvasir_exec::{BatchRow, RowKind};
    use kvasir_kv::{Mask, PlanRow, SeqId, Token};

    struct Silent;

    impl OutputSource for Silent {
        fn token(&self, _: u64, _: u32) -> Token {
            0
        }
    }

    fn device(preset: &str) -> CostDevice {
        CostDevice::new(Preset::parse(preset).unwrap(), Clock::default(), Box::new(Silent))
    }

    /// Rows that feed `fed` tokens each and have `read` entries in the KV cache afterwards.
    fn step(kind: StepKind, rows: u32, fed: u32, read: u32) -> Box<Step> {
        let mut step = Step::default();
        step.batch.kind = kind;
        let row_kind = if kind == StepKind::Decode { RowKind::Decode } else { RowKind::Prefill };
        for i in 0..rows {
            let tokens = Span { start: i * fed, len: fed };
            step.batch.rows.push(BatchRow {
                kind: row_kind,
                tokens,
                context_len: read,
                sample_from: fed - 1,
                ..BatchRow::default()
            });
            step.plan.rows.push(PlanRow {
                seq: SeqId(i.into()),
                queries: tokens,
                segments: Span::default(),
                read_len: read,
                mask: Mask::Causal,
                ..PlanRow::default()
            });
        }
        Box::new(step)
    }

    /// Nanoseconds from now to the end of the step.
    fn time(device: &mut CostDevice, step: Box<Step>) -> f64 {
        let before = device.clock.now();
        let pending = device.submit(step).unwrap();
        assert!(device.wait(pending).1.is_ok());
        (device.clock.now() - before) as f64
    }

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-3
    }

    #[test]
    fn step_time_is_the_roofline_maximum_plus_launches() {
        let mut device = device("h200:qwen3-0.6b");
        let Preset { machine, shape, .. } = device.preset;
        let weights = 2.0 * (shape.layer_weights() + shape.head_weights());
        // Memory bound: the weights once, plus K and V read and written. 28 layers, 8 KV heads of
        // 128, K and V, two bytes each.
        let bytes = weights + 4.0 * 1001.0 * (28 * 8 * 128 * 2 * 2) as f64;
        let decode = time(&mut device, step(StepKind::Decode, 4, 1, 1000));
        // 28 layers of 6.25 kernels, in one CUDA graph.
        let start = 1300.0 + 28.0 * 6.25 * 730.0;
        assert!(near(decode, bytes / 4.64e12 * 1e9 + start), "{decode}");
        assert!(near(device.spent().bytes, bytes));
        // Compute bound: two operations per weight and token; the LM head for the last token only.
        let prompt = time(&mut device, step(StepKind::Prefill, 1, 4096, 4096));
        let operations = device.spent().operations - 4.0 * 2.0 * (weights / 2.0);
        assert!(operations > 4096.0 * 2.0 * shape.layer_weights());
        let least = 4096.0 * 2.0 * shape.layer_weights() / machine.operations().value * 1e9;
        assert!(prompt > least && prompt < 3.0 * least, "{prompt} {least}");
        assert_eq!(device.spent().steps, 2);
    }

    #[test]
    fn ranks_divide_the_work_and_add_collectives() {
        let run = |ranks, step: Box<Step>| {
            let preset = Preset::parse("h200:qwen3-14b").unwrap().with_ranks(ranks).unwrap();
            let mut device = CostDevice::new(preset, Clock::default(), Box::new(Silent));
            let mut breakdown = StepBreakdown::default();
            breakdown.attribute(&preset, &step);
            assert!((breakdown.row_shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            (time(&mut device, step), breakdown.collectives_ns, device.spent().bytes)
        };
        let decode = || step(StepKind::Decode, 8, 1, 1000);
        let [(one, no_collectives, bytes), (four, collectives, rank_bytes)] =
            [1, 4].map(|ranks| run(ranks, decode()));
        assert_eq!(no_collectives, 0.0);
        assert!(near(bytes, rank_bytes * 4.0), "{bytes} {rank_bytes}");
        // 80 all-reduces of 6 hops, and an all-gather of 3; each hop takes at least 0.47 µs.
        assert!(collectives > (80.0 * 6.0 + 3.0) * 470.0 && collectives < four / 2.0, "{collectives}");
        let launches = 1300.0 + 40.0 * 6.25 * 730.0;
        assert!(near(four - collectives - launches, (one - launches) / 4.0), "{one} {four}");
    }

    #[test]
    fn step_time_is_attributed_by_bytes_or_operations() {
        let preset = Preset::parse("h200:qwen3-14b").unwrap();
        let mut mixed = step(StepKind::Decode, 2, 1, 50_000);
        let prefill = step(StepKind::Prefill, 1, 64, 64);
        mixed.batch.rows.extend(prefill.batch.rows.iter().copied());
        mixed.plan.rows.extend(prefill.plan.rows.iter().cloned());
        let mut breakdown = StepBreakdown::default();
        breakdown.attribute(&preset, &mixed);
        let [first, second, third] = breakdown.row_shares[..] else { panic!("{breakdown:?}") };
        // Memory bound: the rows share the weights equally, and the decode rows read more K and V.
        assert!(first == second && third > 0.15 && first > third + 0.1, "{breakdown:?}");
        breakdown.attribute(&preset, &step(StepKind::Prefill, 2, 4096, 4096));
        assert_eq!(breakdown.row_shares, [0.5, 0.5]);
    }

    #[test]
    fn only_recorded_decode_steps_use_graphs() {
        let decode = |rows| step(StepKind::Decode, rows, 1, 8);
        let prompt = || step(StepKind::Prefill, 1, 1, 8);
        let with = |largest: u32, step: Box<Step>| time(&mut device("h200").with_graphs(largest), step);
        // 28 layers of 6.25 kernels, 3.6 µs each, instead of 0.73 µs and one graph launch.
        let saved = 28.0 * 6.25 * (3600.0 - 730.0) - 1300.0;
        assert!(near(with(0, decode(2)) - with(2, decode(2)), saved));
        assert_eq!(with(2, decode(3)), with(0, decode(3)), "more rows than any that was recorded");
        assert_eq!(with(2, prompt()), with(0, prompt()), "only decode steps are recorded");
        let on_a_cpu = |largest| time(&mut device("cpu2-amx").with_graphs(largest), decode(2));
        assert_eq!(on_a_cpu(2), on_a_cpu(0), "nothing is recorded there");
    }

    #[test]
    fn steps_queue_on_the_device_while_the_host_runs() {
        let mut device = device("fixed:2ms");
        let first = device.submit(step(StepKind::Decode, 1, 1, 8)).unwrap();
        device.clock.advance(1_500_000);
        let second = device.submit(step(StepKind::Decode, 1, 1, 8)).unwrap();
        assert!(device.wait(first).1.is_ok());
        assert_eq!(device.clock.now(), 2_000_000);
        assert!(device.wait(second).1.is_ok());
        assert_eq!(device.clock.now(), 4_000_000);
        device.clock.advance(9_000_000);
        assert_eq!(time(&mut device, step(StepKind::Decode, 1, 1, 8)), 2e6);
    }

    #[test]
    fn a_step_of_no_static_shape_loses_the_device() {
        let shape = StaticShape { block: 4, chunk: 8, max_rows: 2, max_volume: 30, max_model_len: 32 };
        let mut device = device("instant").with_static_shapes(shape);
        let refused = device.submit(step(StepKind::Decode, 3, 1, 8)).unwrap_err();
        assert!(matches!(refused.error, StepError::Lost(why) if why.contains("static shape")));
    }
}
