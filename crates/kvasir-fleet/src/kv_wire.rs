//! KV events in vLLM's wire format: msgpack of `[ts, [event, ..], data_parallel_rank]`, each event a map
//! with its name as `type`. Fields that have a default in vLLM and are unknown here are omitted.
//! Events of checkpoints (recurrent states) are not published: vLLM has none.

use kvasir_kv::KvEvent;
use serde::Serialize;

/// The KV cache of the device, which vLLM names so on any backend. Routers give other media less weight.
const MEDIUM: &str = "GPU";
/// The group of the layers that see the whole context. Dynamo drops the events of others.
const MAIN_GROUP: u32 = 0;

#[derive(Serialize)]
#[serde(tag = "type")]
enum WireEvent<'a> {
    BlockStored {
        block_hashes: &'a [u64],
        parent_block_hash: Option<u64>,
        token_ids: &'a [u32],
        block_size: u32,
        lora_id: Option<u32>,
        medium: &'a str,
        lora_name: Option<&'a str>,
        /// One entry per block. As in vLLM, only the first block of a prompt has the salt.
        #[serde(skip_serializing_if = "Option::is_none")]
        extra_keys: Option<Vec<Option<[String; 1]>>>,
        group_idx: u32,
    },
    BlockRemoved {
        block_hashes: &'a [u64],
        medium: &'a str,
        group_idx: u32,
    },
    AllBlocksCleared,
}

impl<'a> WireEvent<'a> {
    /// Returns `None` for an event that vLLM does not have.
    fn from_event(event: &'a KvEvent) -> Option<Self> {
        Some(match event {
            KvEvent::BlockStored { hashes, parent, tokens, block_size, salt } => Self::BlockStored {
                block_hashes: hashes,
                parent_block_hash: *parent,
                token_ids: tokens,
                block_size: *block_size,
                lora_id: None,
                medium: MEDIUM,
                lora_name: None,
                extra_keys: (*salt != 0).then(|| salt_keys(*salt, hashes.len())),
                group_idx: MAIN_GROUP,
            },
            KvEvent::BlockRemoved { hashes } => {
                Self::BlockRemoved { block_hashes: hashes, medium: MEDIUM, group_idx: MAIN_GROUP }
            }
            KvEvent::CheckpointStored { .. } | KvEvent::CheckpointRemoved { .. } => return None,
            KvEvent::AllBlocksCleared => Self::AllBlocksCleared,
        })
    }
}

/// Extra keys of `blocks` blocks: the salt for the first, `None` for the others.
fn salt_keys(salt: u64, blocks: usize) -> Vec<Option<[String; 1]>> {
    let mut keys = vec![None; blocks];
    if let Some(first) = keys.first_mut() {
        *first = Some([format!("{salt:016x}")]);
    }
    keys
}

/// Encodes a batch; `time` is in seconds since 1970. Returns `None` if vLLM has none of its events.
pub(crate) fn encode_batch(time: f64, events: &[KvEvent], rank: usize) -> Option<Vec<u8>> {
    let events: Vec<WireEvent<'_>> = events.iter().filter_map(WireEvent::from_event).collect();
    if events.is_empty() {
        return None;
    }
    rmp_serde::to_vec_named(&(time, events, rank)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that `msgspec` writes for vLLM's classes.
    #[test]
    fn batches_have_the_bytes_of_msgspec() {
        let removed = KvEvent::BlockRemoved { hashes: vec![7, u64::MAX] };
        let bytes = encode_batch(1.5, &[removed, KvEvent::AllBlocksCleared], 2).unwrap();
        let mut expected = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x92, 0x84];
        let text = |expected: &mut Vec<u8>, text: &str| {
            expected.push(0xa0 | text.len() as u8);
            expected.extend(text.bytes());
        };
        ["type", "BlockRemoved", "block_hashes"].iter().for_each(|part| text(&mut expected, part));
        expected.extend([0x92, 7, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255]);
        ["medium", "GPU", "group_idx"].iter().for_each(|part| text(&mut expected, part));
        expected.extend([0, 0x81]);
        ["type", "AllBlocksCleared"].iter().for_each(|part| text(&mut expected, part));
        expected.push(2);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn checkpoints_are_not_published() {
        let (stored, cleared) = (KvEvent::CheckpointStored { hash: 7 }, KvEvent::AllBlocksCleared);
        assert_eq!(encode_batch(1.5, &[KvEvent::CheckpointRemoved { hash: 7 }], 0), None);
        let mixed = encode_batch(1.5, &[stored, cleared.clone()], 0);
        assert_eq!(mixed, encode_batch(1.5, &[cleared], 0));
    }

    #[test]
    fn a_salt_is_an_extra_key_of_the_first_block() {
        let stored = |salt| {
            let event = KvEvent::BlockStored {
                hashes: vec![1, 2],
                parent: None,
                tokens: vec![5, 6],
                block_size: 1,
                salt,
            };
            encode_batch(0.0, &[event], 0).unwrap()
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(!text(&stored(0)).contains("extra_keys"));
        let mut keys = b"\xaaextra_keys\x92\x91\xb0".to_vec();
        keys.extend(b"00000000000000ab\xc0");
        assert!(stored(0xab).windows(keys.len()).any(|part| part == keys), "{}", text(&stored(0xab)));
    }
}
