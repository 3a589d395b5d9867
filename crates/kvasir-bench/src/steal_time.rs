//! CPU steal time: the share of CPU time that a hypervisor gave to other guests (`/proc/stat`).
//!
//! A benchmark on a virtual machine is hard to interpret without it.

use std::fs;

/// CPU time counters in kernel clock ticks since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    /// Ticks spent running: user, nice, system, hard and soft interrupts.
    used: u64,
    /// Ticks in which a runnable virtual CPU waited for the hypervisor (steal time).
    stolen: u64,
}

impl Ticks {
    /// Reads the sum over all processors. `None` where `/proc/stat` is not available.
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let counts = stat.lines().next()?.strip_prefix("cpu ")?;
        let counts: Vec<u64> = counts.split_whitespace().map_while(|n| n.parse().ok()).collect();
        // Idle and I/O wait are excluded. Guest time is already contained in user and nice.
        let &[user, nice, system, _idle, _waiting, hard, soft, stolen, ..] = &counts[..] else { return None };
        Some(Self { used: user + nice + system + hard + soft, stolen })
    }

    /// `stolen / (stolen + used)` since `before`.
    fn share_since(self, before: Self) -> f64 {
        let stolen = self.stolen.saturating_sub(before.stolen);
        let wanted = stolen + self.used.saturating_sub(before.used);
        stolen as f64 / wanted.max(1) as f64
    }
}

/// Measures steal time from its creation on.
pub(crate) struct StealClock(Option<Ticks>);

impl StealClock {
    pub(crate) fn start() -> Self {
        Self(Ticks::now())
    }

    /// The steal share since `start`, or `None` where the system does not report it.
    pub(crate) fn share(&self) -> Option<f64> {
        Some(Ticks::now()?.share_since(self.0?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_share_excludes_idle_time() {
        let of = |user, idle, stolen| {
            Ticks::parse(&format!("cpu  {user} 2 3 {idle} 5 0 6 {stolen} 0 0\ncpu0 1 1 1 1 1 1 1 1\n"))
        };
        let (before, after) = (of(100, 1000, 10).unwrap(), of(160, 90_000, 30).unwrap());
        assert_eq!(before, Ticks { used: 111, stolen: 10 });
        assert_eq!(after.share_since(before), 0.25);
        assert_eq!(after.share_since(after), 0.0);
    }

    #[test]
    fn a_system_that_says_something_else_says_nothing() {
        for stat in ["", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8", "cpu  1 2 3 4 5 6 7 x"] {
            assert_eq!(Ticks::parse(stat), None, "{stat}");
        }
        assert_eq!(StealClock(None).share(), None);
    }
}
