//! Mixtures of experts: tokens are sorted by expert, so that each expert's weights are read once for all its tokens.

use crate::buffer::Buffer;
use crate::prepared::{Operand, Prepared};
use crate::weights::Linear;
use crate::{Level, Team, rows};
use kvasir_program::{Activation, Op, Program, Routing, Score};
use std::io;

/// Experts of one token with their shares.
pub(crate) type Routes = Vec<(u32, f32)>;

/// Chooses a token's experts from their scores.
pub(crate) fn route(scores: &[f32], routing: &Routing, correction: Option<&[f32]>) -> Routes {
    let mut shares = scores.to_vec();
    match routing.score {
        Score::Softmax => {
            let most = shares.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            shares.iter_mut().for_each(|s| *s = (*s - most).exp());
            let sum: f32 = shares.iter().sum();
            shares.iter_mut().for_each(|s| *s /= sum);
        }
        Score::Sigmoid => shares.iter_mut().for_each(|s| *s = 1.0 / (1.0 + (-*s).exp())),
    }
    let mut choice = shares.clone();
    if let Some(correction) = correction {
        choice.iter_mut().zip(correction).for_each(|(c, add)| *c += add);
    }
    if let Some(groups) = routing.groups {
        let size = (choice.len() / groups.count.max(1)).max(1);
        let worth = |group: &[f32]| best(group, 2).iter().map(|&i| group[i]).sum::<f32>();
        let worths: Vec<f32> = choice.chunks(size).map(worth).collect();
        let kept = best(&worths, groups.keep);
        for (group, choice) in choice.chunks_mut(size).enumerate() {
            if !kept.contains(&group) {
                choice.fill(f32::NEG_INFINITY);
            }
        }
    }
    let mut routes: Routes =
        best(&choice, routing.top_k).into_iter().map(|e| (e as u32, shares[e])).collect();
    if let Some(eps) = routing.renormalise {
        let sum = routes.iter().map(|(_, share)| share).sum::<f32>() + eps;
        routes.iter_mut().for_each(|(_, share)| *share /= sum);
    }
    routes.iter_mut().for_each(|(_, share)| *share *= routing.scale);
    routes
}

/// The `k` largest, best first, of equals the earlier.
fn best(values: &[f32], k: usize) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..values.len()).collect();
    ids.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    ids.truncate(k);
    ids
}

/// Rows of the tokens of one expert.
pub(crate) struct MixtureMemory {
    x: Buffer,
    gate: Buffer,
    up: Buffer,
    inner: Buffer,
    out: Buffer,
    prepared: Prepared,
}

impl MixtureMemory {
    /// Room for `tokens` tokens in any mixture of the program.
    pub(crate) fn new(program: &Program, tokens: usize) -> io::Result<Self> {
        let sizes = program.ops.iter().filter_map(|op| match op {
            Op::Mixture { experts, .. } => Some((experts.gate.first.inputs, experts.gate.first.outputs)),
            _ => None,
        });
        let (outer, inner) = sizes.fold((0, 0), |(a, b), (outer, inner)| (a.max(outer), b.max(inner)));
        let rows = |width: usize| Buffer::new(width * tokens * 4);
        Ok(Self {
            x: rows(outer)?,
            gate: rows(inner)?,
            up: rows(inner)?,
            inner: rows(inner)?,
            out: rows(outer)?,
            prepared: Prepared::new(if outer == 0 { 0 } else { tokens }, outer.max(inner))?,
        })
    }
}

fn floats(buffer: &mut Buffer) -> &mut [f32] {
    let len = buffer.len() / 4;
    // SAFETY: the buffer begins at a page and is borrowed alone; any bytes are floats.
    unsafe { std::slice::from_raw_parts_mut(buffer.bytes_mut().as_mut_ptr().cast(), len) }
}

/// What each token's experts yield together. Experts are taken in the order of their numbers, so a token's sum does not depend on others.
pub(crate) fn mixture(
    (team, level): (&Team, Level),
    [gate, up, down]: [&[Linear]; 3],
    activation: Activation,
    x: &[f32],
    routes: &[Routes],
    m: &mut MixtureMemory,
    (y, width): (&mut [f32], usize),
) {
    y.fill(0.0);
    for expert in 0..gate.len() {
        let chosen = routes.iter().enumerate().flat_map(|(token, routes)| {
            routes.iter().filter(|(e, _)| *e as usize == expert).map(move |(_, share)| (token, *share))
        });
        let chosen: Vec<(usize, f32)> = chosen.collect();
        let n = chosen.len();
        if n == 0 {
            continue;
        }
        let (outer, inner) = (gate[expert].inputs, gate[expert].outputs);
        let rows_x = floats(&mut m.x);
        for (to, (token, _)) in rows_x.chunks_exact_mut(outer).zip(&chosen) {
            to.copy_from_slice(&x[token * outer..(token + 1) * outer]);
        }
        m.prepared.forget();
        let all = (team, level);
        // The same operand under one made-up name, so that it is prepared once.
        let name = Some(kvasir_program::ValueId(u32::MAX));
        m.prepared.multiply(
            all,
            &gate[expert],
            name,
            Operand::Rows(rows_x, outer),
            n,
            (floats(&mut m.gate), inner),
        );
        m.prepared.multiply(
            all,
            &up[expert],
            name,
            Operand::Rows(rows_x, outer),
            n,
            (floats(&mut m.up), inner),
        );
        let (g, u, i) = (floats(&mut m.gate), floats(&mut m.up), floats(&mut m.inner));
        rows::gate(level, &g[..n * inner], &u[..n * inner], activation, &mut i[..n * inner]);
        m.prepared.multiply(
            all,
            &down[expert],
            None,
            Operand::Rows(i, inner),
            n,
            (floats(&mut m.out), outer),
        );
        for (from, (token, share)) in floats(&mut m.out).chunks_exact(outer).zip(&chosen) {
            y[token * width..(token + 1) * width].iter_mut().zip(from).for_each(|(y, v)| *y += share * v);
        }
    }
}
