use super::{Attend, Results};
use crate::{Level, Team};
use std::cell::RefCell;

/// The same attention in plain arithmetic on what is stored: products and sums in f64, results in f32. For `--precision exact`.
pub(crate) fn attend_exact(a: &Attend<'_>, team: &Team, level: Level, out: &Results) {
    thread_local! {
        static ROWS: RefCell<(Vec<f32>, Vec<f64>, Vec<f64>)> = const { RefCell::new((Vec::new(), Vec::new(), Vec::new())) };
    }
    let heads = a.heads;
    let total: usize = a.views.views.iter().map(|v| v.tokens * heads).sum();
    team.each(total, &|_, item| {
        let mut item = item;
        for view in &a.views.views {
            if item >= view.tokens * heads {
                item -= view.tokens * heads;
                continue;
            }
            let (query, head) = (item / heads, item % heads);
            let (kd, vd) = (a.facts.key_dim, a.facts.value_dim);
            let at = (view.token + query) * a.q_stride + head * kd;
            let q = &a.q[at..at + kd];
            let kv_head = head / a.per_head();
            let from = a.window_from(view.token + query) as u32;
            let seen = || a.views.entries(view).take(view.visible(query)).filter(|e| e.2 >= from);
            ROWS.with_borrow_mut(|(row, scores, sums)| {
                row.resize(kd.max(vd), 0.0);
                scores.clear();
                for (pool, slot, _) in seen() {
                    // SAFETY: the executor has checked the plan's slots, and writes come before reads.
                    unsafe { a.pool(pool).keys.read(level, slot, kv_head, &mut row[..kd]) };
                    let dot: f64 = q.iter().zip(&*row).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                    let s = dot * f64::from(a.scale);
                    scores.push(a.soft_cap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh()));
                }
                let sink = a.sinks.map(|sinks| f64::from(sinks[head]));
                let most = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                sums.clear();
                sums.resize(vd, 0.0);
                let mut total = sink.map_or(0.0, |s| (s - most).exp());
                for ((pool, slot, _), score) in seen().zip(&*scores) {
                    let share = (score - most).exp();
                    total += share;
                    let rows = a.pool(pool).read_as_values();
                    // SAFETY: as above.
                    unsafe { rows.read(level, slot, kv_head, &mut row[..vd]) };
                    sums.iter_mut().zip(&*row).for_each(|(s, &v)| *s += share * f64::from(v));
                }
                let to = out.lane(view.token + query, head * vd, vd);
                to.iter_mut()
                    .zip(&*sums)
                    .for_each(|(t, s)| *t = if total > 0.0 { (s / total) as f32 } else { 0.0 });
            });
            break;
        }
    });
}
