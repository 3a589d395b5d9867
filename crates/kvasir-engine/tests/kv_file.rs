//! K/V files: rows read back as written, and a file that is corrupt at any byte is refused.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::{KvFile, KvFileError, KvFileHeader, KvFileWriter};
use kvasir_exec::KvLayout;
use kvasir_kv::Token;
use kvasir_testkit::Random;
use std::io::Cursor;

fn layout(slot_bytes: usize) -> KvLayout {
    KvLayout { format: "toy".into(), slot_bytes }
}

fn header(random: &mut Random) -> KvFileHeader {
    // Several chunks of 32 MiB take slots of megabytes.
    let is_large = random.one_in(8);
    let slot_bytes = if is_large { 9 << 20 } else { random.pick(&[8, 100]) };
    let block_size = random.pick(if is_large { &[1, 2] } else { &[2, 16] });
    let tokens = random.between(1, if is_large { 9 } else { 300 });
    KvFileHeader {
        kv_fingerprint: 7,
        layout: layout(slot_bytes),
        block_size,
        final_len: tokens + random.between(0, 50),
        prefix_salt: random.below(2),
        tokens: (0..tokens).map(|_| random.below(1 << 20) as Token).collect(),
        row_count: tokens / block_size * block_size,
    }
}

fn rows(header: &KvFileHeader, random: &mut Random) -> Vec<u8> {
    let mut next = random.below(251) as u8;
    let bytes = header.layout.slot_bytes * header.row_count as usize;
    let mut byte = || {
        next = next.wrapping_mul(5).wrapping_add(1);
        next
    };
    (0..bytes).map(|_| byte()).collect()
}

fn file(header: &KvFileHeader, rows: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = KvFileWriter::new(&mut bytes, header).unwrap();
    let mut rest = rows;
    while !rest.is_empty() {
        let part = (random.between(1, 1 << 24) as usize).min(rest.len());
        writer.write(&rest[..part]).unwrap();
        rest = &rest[part..];
    }
    let len = writer.finish().unwrap();
    assert_eq!(len, bytes.len() as u64);
    bytes
}

#[test]
fn files_read_back_as_written() {
    let mut chunks = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let header = header(&mut random);
        let rows = rows(&header, &mut random);
        let bytes = file(&header, &rows, &mut random);
        let mut read = KvFile::open(Cursor::new(&bytes)).unwrap();
        assert_eq!((read.header(), read.bytes()), (&header, bytes.len() as u64), "seed {seed}");
        read.verify_checksums().unwrap();
        let (mut all, mut part) = (Vec::new(), Vec::new());
        for chunk in header.chunks() {
            read.read_chunk(&chunk, &mut part).unwrap();
            all.extend_from_slice(&part);
            chunks += 1;
        }
        assert!(all == rows, "seed {seed}");
    }
    assert!(chunks > 45, "{chunks}");
}

/// Why a file is refused; `None` if it is intact.
fn refusal(bytes: &[u8]) -> Option<KvFileError> {
    KvFile::open(Cursor::new(bytes)).and_then(|mut file| file.verify_checksums()).err()
}

#[test]
fn corrupt_files_are_refused() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut header = header(&mut random);
        header.layout = layout(random.pick(&[8, 100]));
        let rows = rows(&header, &mut random);
        let whole = file(&header, &rows, &mut random);
        assert!(refusal(&whole).is_none(), "seed {seed}");
        let at = random.below(whole.len() as u64) as usize;
        let error = refusal(&whole[..at]).unwrap();
        let named = matches!(error, KvFileError::Truncated { found, .. } if found == at as u64);
        assert!(named || at == 0, "seed {seed}: {at} bytes: {error}");
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << random.below(8);
        assert!(refusal(&flipped).is_some(), "seed {seed}: byte {at}");
        let longer = [&whole[..], b"x"].concat();
        assert!(matches!(refusal(&longer), Some(KvFileError::Corrupt { .. })), "seed {seed}");
    }
    for foreign in [&b""[..], b"G", b"GGUF", b"KVASIRKW", &[0; 5000]] {
        assert!(matches!(refusal(foreign), Some(KvFileError::NotKvFile)), "{foreign:?}");
    }
}

#[test]
fn chunks_of_other_files_are_refused() {
    let mut random = Random::new(1);
    let header = KvFileHeader { layout: layout(100), row_count: 16, block_size: 16, ..header(&mut random) };
    let header = KvFileHeader { tokens: vec![1; 16], ..header };
    let other = KvFileHeader { tokens: vec![2; 16], ..header.clone() };
    let rows = rows(&header, &mut random);
    let [one, other] = [header, other].map(|header| file(&header, &rows, &mut random));
    let first_chunk = one.len() - (16 * 100 + 8);
    let mixed = [&one[..first_chunk], &other[first_chunk..]].concat();
    assert!(matches!(refusal(&mixed), Some(KvFileError::Corrupt { .. })));
}

#[test]
fn rows_of_other_models_and_layouts_are_refused() {
    let mut random = Random::new(3);
    let header = KvFileHeader { layout: layout(8), ..header(&mut random) };
    let rows = rows(&header, &mut random);
    let bytes = file(&header, &rows, &mut random);
    let read = KvFile::open(Cursor::new(&bytes)).unwrap();
    let block = header.block_size;
    assert!(read.check_compatible(7, &layout(8), block).is_ok());
    assert!(matches!(read.check_compatible(8, &layout(8), block), Err(KvFileError::ModelMismatch)));
    for (layout, block) in [
        (layout(9), block),
        (layout(8), block + 1),
        (KvLayout { format: "f32".into(), slot_bytes: 8 }, block),
    ] {
        assert!(matches!(read.check_compatible(7, &layout, block), Err(KvFileError::LayoutMismatch { .. })));
    }
}

#[test]
fn writers_refuse_too_few_and_too_many_rows() {
    let header = KvFileHeader {
        kv_fingerprint: 7,
        layout: layout(4),
        block_size: 2,
        final_len: 9,
        prefix_salt: 0,
        tokens: vec![1; 5],
        row_count: 4,
    };
    let mut short = KvFileWriter::new(Vec::new(), &header).unwrap();
    short.write(&[0; 15]).unwrap();
    assert!(short.finish().is_err());
    let mut long = KvFileWriter::new(Vec::new(), &header).unwrap();
    assert!(long.write(&[0; 17]).is_err());
}
