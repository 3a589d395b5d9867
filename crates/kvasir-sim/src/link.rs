//! `Link`: bandwidth and latency of a connection, and the time of messages and ring collectives
//! over it.
//!
//! ```text
//! message    = latency + bytes / bandwidth
//! all-reduce = 2 (n - 1) latency + 2 (n - 1) / n * bytes / bandwidth
//! all-gather =   (n - 1) latency +   (n - 1) / n * bytes / bandwidth
//! ```

use crate::figure::Figure;

/// A connection between two devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second in each direction.
    pub bandwidth: Figure,
    /// Seconds until the first byte of a message arrives.
    pub latency: Figure,
}

/// The links of a machine by class; `None` for a class without figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Links {
    /// Between the ranks of a replica.
    pub ranks: Option<Link>,
    /// Between replicas.
    pub replicas: Option<Link>,
}

impl Links {
    /// These links; missing classes are taken from `other`.
    pub fn or(self, other: Self) -> Self {
        Self { ranks: self.ranks.or(other.ranks), replicas: self.replicas.or(other.replicas) }
    }
}

impl Link {
    /// A link with figures that the user gave.
    pub fn given(bandwidth: f64, latency: f64) -> Self {
        Self { bandwidth: Figure::given(bandwidth), latency: Figure::given(latency) }
    }

    /// Seconds that `bytes` occupy the link, without latency.
    pub fn transfer(&self, bytes: f64) -> f64 {
        bytes / self.bandwidth.value
    }

    /// Seconds from the start of a message to the arrival of its last byte.
    pub fn message(&self, bytes: f64) -> f64 {
        self.latency.value + self.transfer(bytes)
    }

    /// Seconds of a ring all-reduce of `bytes` per rank over `ranks` ranks.
    pub fn all_reduce(&self, bytes: f64, ranks: u32) -> f64 {
        2.0 * self.all_gather(bytes, ranks)
    }

    /// Seconds of a ring all-gather over `ranks` ranks, whose shards have `bytes` together.
    pub fn all_gather(&self, bytes: f64, ranks: u32) -> f64 {
        let hops = f64::from(ranks.max(1) - 1);
        hops * (self.latency.value + self.transfer(bytes) / f64::from(ranks.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collectives_take_the_time_of_their_hops() {
        let link = Link::given(1e9, 1e-6);
        assert_eq!(link.message(1e3), 2e-6);
        assert_eq!(link.all_reduce(4e6, 1), 0.0);
        let times = [link.all_reduce(4e6, 4), link.all_gather(4e6, 4)];
        let expected = [6.0 * (1e-6 + 1e-3), 3.0 * (1e-6 + 1e-3)];
        assert!(times.iter().zip(expected).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{times:?}");
    }
}
