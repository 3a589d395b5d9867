//! What others on the same hardware take: a figure of a virtual machine says little without it.

use std::fs;

/// Counts of the system's clock since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    /// In which something ran.
    used: u64,
    /// In which something was to run, and the machine below ran another guest.
    stolen: u64,
}

impl Ticks {
    /// Of all processors together; none where the system does not say.
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        let counts = stat.lines().next()?.strip_prefix("cpu ")?;
        let counts: Vec<u64> = counts.split_whitespace().map_while(|n| n.parse().ok()).collect();
        // What waits (two of them idle) is no use; what guests of this machine use is in the first two again.
        let &[user, nice, system, _idle, _waiting, hard, soft, stolen, ..] = &counts[..] else { return None };
        Some(Self { used: user + nice + system + hard + soft, stolen })
    }

    /// The share of what was wanted since `before` that was stolen.
    fn share_since(self, before: Self) -> f64 {
        let stolen = self.stolen.saturating_sub(before.stolen);
        let wanted = stolen + self.used.saturating_sub(before.used);
        stolen as f64 / wanted.max(1) as f64
    }
}

/// Watches from when it is made.
pub(crate) struct Watch(Option<Ticks>);

impl Watch {
    pub(crate) fn start() -> Self {
        Self(Ticks::now())
    }

    /// The share of the processors' time that was wanted since and went to others; none where the system does not say.
    pub(crate) fn share(&self) -> Option<f64> {
        Some(Ticks::now()?.share_since(self.0?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_of_what_was_wanted_and_idle_time_is_not() {
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
        assert_eq!(Watch(None).share(), None);
    }
}
