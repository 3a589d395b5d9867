//! Counters of K/V blocks that replicas transfer, for fleets whose replicas have roles.

use crate::metrics::prometheus::TextExposition;
use kvasir_engine::{ReplicaStatus, Role, TransferCounts};

/// Exposes the counters of all replicas, unless every replica has the role `both`.
pub(crate) fn transfers(page: &mut TextExposition, replicas: &[ReplicaStatus]) {
    if replicas.iter().all(|replica| replica.role == Role::Both) {
        return;
    }
    type Value = fn(&TransferCounts) -> u64;
    let families: [(&str, &str, Value); 5] = [
        ("replica_kv_sent_blocks_total", "K/V blocks sent to other replicas.", |counts| counts.sent_blocks),
        ("replica_kv_sent_bytes_total", "Bytes of K/V sent to other replicas.", |counts| counts.sent_bytes),
        ("replica_kv_unsent_blocks_total", "K/V blocks of prompts that were not sent.", |counts| {
            counts.unsent_blocks
        }),
        ("replica_kv_received_blocks_total", "K/V blocks received and stored.", |counts| {
            counts.received_blocks
        }),
        ("replica_kv_refused_blocks_total", "K/V blocks received and not stored.", |counts| {
            counts.refused_blocks
        }),
    ];
    for (name, help, value) in families {
        let values = replicas.iter().map(|replica| {
            let (index, role) = (replica.replica, replica.role);
            (format!("replica=\"{index}\",role=\"{role}\""), value(&replica.kv_transfers))
        });
        page.counters(name, help, values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_with_roles_have_counters() {
        let of = |role, sent_blocks| ReplicaStatus {
            role,
            kv_transfers: TransferCounts { sent_blocks, ..TransferCounts::default() },
            ..ReplicaStatus::default()
        };
        let text_of = |replicas: &[ReplicaStatus]| {
            let mut page = TextExposition::new("kvasir:", "m");
            transfers(&mut page, replicas);
            page.text
        };
        assert_eq!(text_of(&[of(Role::Both, 0)]), "");
        let text = text_of(&[of(Role::Prefill, 7), of(Role::Decode, 0)]);
        assert!(text.contains("replica_kv_sent_blocks_total{"), "{text}");
        assert!(text.lines().any(|line| line.contains("role=\"prefill\"") && line.ends_with(" 7")), "{text}");
    }
}
