//! A K/V file: the tokens of a sequence, and the K/V rows of its leading whole blocks as a pool
//! stores them. Reads and writes streams, not paths.
//! [`Engine::import_kv`](crate::Engine::import_kv) imports its chunks into a pool.
//!
//! Layout, all integers little-endian:
//!
//! | part | content |
//! |---|---|
//! | preamble | `KVASIRKV`, version: u32, header length in bytes: u32 |
//! | header | K/V fingerprint, prefix salt, bytes per slot: u64 each; block size, chunk size, final length, row count, token count, length of the layout name: u32 each; layout name; tokens: u32 each |
//! | checksum | XXH64 of preamble and header |
//! | chunk, repeated | rows of `chunk size` tokens, fewer in the last chunk; XXH64 of the rows, seeded with the header's checksum plus the position of the first row |
//!
//! The header determines the length of the file. All sizes are checked against the actual length
//! before memory is allocated. Checksums detect corruption, not forgery: the directory of the files
//! must be as trusted as the model's.

use kvasir_exec::KvLayout;
use kvasir_kv::Token;
use std::{
    fmt,
    io::{self, Read, Seek, SeekFrom, Write},
    ops::Range,
};
use xxhash_rust::xxh64::{Xxh64, xxh64};

const MAGIC: &[u8; 8] = b"KVASIRKV";
const VERSION: u32 = 1;
/// Bytes of magic, version and header length.
const PREAMBLE_BYTES: usize = 16;
/// Bytes of the fixed-size header fields.
const FIXED_FIELD_BYTES: usize = 3 * 8 + 5 * 4 + 4;
/// Maximum bytes of a header; the tokens of the longest contexts fit.
const MAX_HEADER_BYTES: u32 = 1 << 28;
/// Target size of a chunk's rows; a larger block is a chunk of its own.
const CHUNK_BYTES: usize = 32 << 20;
/// Maximum size of a chunk's rows.
const MAX_CHUNK_BYTES: usize = 1 << 30;
const CHECKSUM_BYTES: usize = 8;

/// Header of a K/V file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFileHeader {
    /// Hash by which the caller identifies weights and arithmetic. A file whose fingerprint differs
    /// from the pool's is refused.
    pub kv_fingerprint: u64,
    /// Layout of the rows.
    pub layout: KvLayout,
    /// Tokens per block.
    pub block_size: u32,
    /// Maximum length of the sequence, on which its RoPE may depend.
    pub final_len: u32,
    /// The model's prefix salt for `final_len`.
    pub prefix_salt: u64,
    /// Tokens of the sequence, with and without rows.
    pub tokens: Vec<Token>,
    /// Number of leading tokens with rows, a multiple of the block size.
    pub row_count: u32,
}

impl KvFileHeader {
    /// Tokens per chunk.
    pub fn chunk_size(&self) -> u32 {
        let block_bytes = self.layout.slot_bytes.saturating_mul(self.block_size as usize).max(1);
        let blocks = (CHUNK_BYTES / block_bytes).max(1);
        u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(self.block_size)
    }

    /// The token range of each chunk.
    pub fn chunks(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let (end, size) = (self.row_count, self.chunk_size().max(1));
        (0..end).step_by(size as usize).map(move |start| start..start.saturating_add(size).min(end))
    }

    /// Encodes preamble and header, without their checksum.
    fn to_bytes(&self) -> Vec<u8> {
        let name = self.layout.format.as_bytes();
        let len = FIXED_FIELD_BYTES + name.len() + 4 * self.tokens.len();
        let mut bytes = Vec::with_capacity(PREAMBLE_BYTES + len);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, len as u32].map(u32::to_le_bytes).as_flattened());
        let u64_fields = [self.kv_fingerprint, self.prefix_salt, self.layout.slot_bytes as u64];
        bytes.extend(u64_fields.map(u64::to_le_bytes).as_flattened());
        let u32_fields = [
            self.block_size,
            self.chunk_size(),
            self.final_len,
            self.row_count,
            self.tokens.len() as u32,
            name.len() as u32,
        ];
        bytes.extend(u32_fields.map(u32::to_le_bytes).as_flattened());
        bytes.extend(name);
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// Decodes the header that follows the preamble; `None` if its fields are inconsistent.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED_FIELD_BYTES)?;
        let u64_field = |at: usize| Some(u64::from_le_bytes(fixed.get(8 * at..)?.first_chunk().copied()?));
        let u32_field =
            |at: usize| Some(u32::from_le_bytes(fixed.get(24 + 4 * at..)?.first_chunk().copied()?));
        let (name, tokens) = rest.split_at_checked(u32_field(5)? as usize)?;
        if tokens.len() != (u32_field(4)? as usize).checked_mul(4)? {
            return None;
        }
        let token = |bytes: &[u8]| Some(Token::from_le_bytes(bytes.first_chunk().copied()?));
        let format = std::str::from_utf8(name).ok()?.to_owned();
        let header = Self {
            kv_fingerprint: u64_field(0)?,
            prefix_salt: u64_field(1)?,
            layout: KvLayout { format, slot_bytes: usize::try_from(u64_field(2)?).ok()? },
            block_size: u32_field(0)?,
            final_len: u32_field(2)?,
            row_count: u32_field(3)?,
            tokens: tokens.chunks_exact(4).map(token).collect::<Option<_>>()?,
        };
        let chunk_bytes = header.layout.slot_bytes.checked_mul(header.chunk_size() as usize)?;
        let has_whole_blocks = header.block_size > 0 && header.row_count.is_multiple_of(header.block_size);
        let is_consistent =
            header.chunk_size() == u32_field(1)? && header.row_count as usize <= header.tokens.len();
        (has_whole_blocks && is_consistent && chunk_bytes <= MAX_CHUNK_BYTES).then_some(header)
    }

    /// Length of the file in bytes, if its chunks begin at `chunks_offset`.
    fn file_len(&self, chunks_offset: u64) -> u64 {
        let rows = u64::from(self.row_count).saturating_mul(self.layout.slot_bytes as u64);
        chunks_offset.saturating_add(rows).saturating_add((CHECKSUM_BYTES * self.chunks().count()) as u64)
    }
}

/// Why a K/V file cannot be read, written or imported.
#[derive(Debug)]
#[non_exhaustive]
pub enum KvFileError {
    /// Reading or writing failed.
    Io(io::Error),
    /// The file does not begin with the magic bytes.
    NotKvFile,
    /// The version of the format is not supported.
    Version(u32),
    /// The file is shorter than its header requires.
    Truncated {
        /// Actual length in bytes.
        found: u64,
        /// Length in bytes by the header.
        expected: u64,
    },
    /// A checksum or a size is wrong.
    Corrupt {
        /// Offset of the wrong part in bytes.
        at: u64,
    },
    /// The rows were computed with another model or another arithmetic.
    ModelMismatch,
    /// The layout or the block size differs from the pool's.
    LayoutMismatch {
        /// The layout of the file.
        file: String,
        /// The layout of the pool.
        pool: String,
    },
}

impl fmt::Display for KvFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotKvFile => write!(f, "it is not a K/V file"),
            Self::Version(version) => {
                write!(f, "it has version {version} of the format; only version {VERSION} is supported")
            }
            Self::Truncated { found, expected } => write!(f, "truncated: {found} of {expected} bytes"),
            Self::Corrupt { at } => write!(f, "corrupt: wrong checksum or size at byte {at}"),
            Self::ModelMismatch => write!(f, "its K and V are of another model, or of another arithmetic"),
            Self::LayoutMismatch { file, pool } => {
                write!(f, "its K and V are stored as `{file}`, the pool's as `{pool}`")
            }
        }
    }
}

impl std::error::Error for KvFileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for KvFileError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Writes a K/V file: the header at construction, then the rows in order.
pub struct KvFileWriter<W> {
    file: W,
    header_checksum: u64,
    slot_bytes: usize,
    /// Incomplete chunks in reverse order; the last one is being written.
    pending: Vec<Range<u32>>,
    /// Hash of the written rows of the current chunk.
    hasher: Xxh64,
    /// Bytes written of the current chunk.
    chunk_written: usize,
    /// Bytes written in total.
    file_len: u64,
}

impl<W: Write> KvFileWriter<W> {
    /// Writes the header.
    pub fn new(mut file: W, header: &KvFileHeader) -> Result<Self, KvFileError> {
        let bytes = header.to_bytes();
        let header_checksum = xxh64(&bytes, 0);
        file.write_all(&bytes)?;
        file.write_all(&header_checksum.to_le_bytes())?;
        let mut pending: Vec<_> = header.chunks().collect();
        pending.reverse();
        let hasher = Xxh64::new(header_checksum);
        let (slot_bytes, file_len) = (header.layout.slot_bytes, (bytes.len() + CHECKSUM_BYTES) as u64);
        Ok(Self { file, header_checksum, slot_bytes, pending, hasher, chunk_written: 0, file_len })
    }

    /// Appends rows, which may end anywhere in a chunk. More rows than in the header are an error.
    pub fn write(&mut self, mut rows: &[u8]) -> Result<(), KvFileError> {
        while !rows.is_empty() {
            let chunk = self.pending.last().ok_or_else(|| io::Error::other("too many rows"))?;
            let missing = self.slot_bytes * chunk.len() - self.chunk_written;
            let (part, rest) = rows.split_at(missing.min(rows.len()));
            self.file.write_all(part)?;
            self.hasher.update(part);
            self.chunk_written += part.len();
            self.file_len += part.len() as u64;
            rows = rest;
            if part.len() == missing {
                self.file.write_all(&self.hasher.digest().to_le_bytes())?;
                self.file_len += CHECKSUM_BYTES as u64;
                self.pending.pop();
                let start = self.pending.last().map_or(0, |chunk| chunk.start);
                self.hasher.reset(self.header_checksum.wrapping_add(start.into()));
                self.chunk_written = 0;
            }
        }
        Ok(())
    }

    /// Flushes the file and returns its length in bytes. Missing rows are an error.
    pub fn finish(mut self) -> Result<u64, KvFileError> {
        if !self.pending.is_empty() {
            return Err(io::Error::other("rows are missing").into());
        }
        self.file.flush()?;
        Ok(self.file_len)
    }
}

/// Reads a K/V file.
pub struct KvFile<R> {
    file: R,
    header: KvFileHeader,
    header_checksum: u64,
    /// Offset of the first chunk.
    chunks_offset: u64,
    len: u64,
}

impl<R: Read + Seek> KvFile<R> {
    /// Reads the header, and checks it and the length of the file. Does not read the chunks.
    pub fn open(mut file: R) -> Result<Self, KvFileError> {
        let found = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut preamble = [0; PREAMBLE_BYTES];
        let readable = found.min(PREAMBLE_BYTES as u64) as usize;
        file.read_exact(&mut preamble[..readable])?;
        if !preamble.starts_with(&MAGIC[..readable.clamp(1, MAGIC.len())]) {
            return Err(KvFileError::NotKvFile);
        }
        let [version, len] = [8, 12].map(|at| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&preamble[at..at + 4]);
            u32::from_le_bytes(bytes)
        });
        if readable == PREAMBLE_BYTES && version != VERSION {
            return Err(KvFileError::Version(version));
        }
        let chunks_offset = PREAMBLE_BYTES as u64 + u64::from(len) + CHECKSUM_BYTES as u64;
        if readable < PREAMBLE_BYTES || found < chunks_offset {
            return Err(KvFileError::Truncated {
                found,
                expected: chunks_offset.max(PREAMBLE_BYTES as u64 + 1),
            });
        }
        if len > MAX_HEADER_BYTES {
            return Err(KvFileError::Corrupt { at: 12 });
        }
        let mut bytes = preamble.to_vec();
        bytes.resize(PREAMBLE_BYTES + len as usize, 0);
        file.read_exact(&mut bytes[PREAMBLE_BYTES..])?;
        let checksum = read_checksum(&mut file)?;
        let header = KvFileHeader::from_bytes(&bytes[PREAMBLE_BYTES..]);
        let header = header.filter(|_| xxh64(&bytes, 0) == checksum);
        let header = header.ok_or(KvFileError::Corrupt { at: PREAMBLE_BYTES as u64 })?;
        let expected = header.file_len(chunks_offset);
        if found < expected {
            return Err(KvFileError::Truncated { found, expected });
        }
        if found > expected {
            return Err(KvFileError::Corrupt { at: expected });
        }
        Ok(Self { file, header, header_checksum: checksum, chunks_offset, len: found })
    }

    /// The header.
    pub fn header(&self) -> &KvFileHeader {
        &self.header
    }

    /// Length of the file in bytes.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Checks that the rows can be imported into a pool with this fingerprint, layout and block
    /// size.
    pub fn check_compatible(
        &self,
        kv_fingerprint: u64,
        layout: &KvLayout,
        block_size: u32,
    ) -> Result<(), KvFileError> {
        let header = &self.header;
        if header.layout != *layout || header.block_size != block_size {
            let description = |layout: &KvLayout, block_size: u32| {
                // The shapes of all layers follow the name.
                let name = layout.format.split(" [").next().unwrap_or_default();
                format!("{name}, {} bytes per token, blocks of {block_size}", layout.slot_bytes)
            };
            let (file, pool) =
                (description(&header.layout, header.block_size), description(layout, block_size));
            return Err(KvFileError::LayoutMismatch { file, pool });
        }
        if header.kv_fingerprint == kv_fingerprint { Ok(()) } else { Err(KvFileError::ModelMismatch) }
    }

    /// Reads the rows of one of the header's chunks into `rows`, and checks their checksum.
    pub fn read_chunk(&mut self, chunk: &Range<u32>, rows: &mut Vec<u8>) -> Result<(), KvFileError> {
        let slot_bytes = self.header.layout.slot_bytes;
        let checksums = u64::from(chunk.start / self.header.chunk_size()) * CHECKSUM_BYTES as u64;
        let at = self.chunks_offset + u64::from(chunk.start) * slot_bytes as u64 + checksums;
        self.file.seek(SeekFrom::Start(at))?;
        rows.resize(slot_bytes * chunk.len(), 0);
        self.file.read_exact(rows)?;
        let checksum = xxh64(rows, self.header_checksum.wrapping_add(chunk.start.into()));
        if read_checksum(&mut self.file)? == checksum { Ok(()) } else { Err(KvFileError::Corrupt { at }) }
    }

    /// Reads all chunks and checks their checksums.
    pub fn verify_checksums(&mut self) -> Result<(), KvFileError> {
        let mut rows = Vec::new();
        self.header.chunks().try_for_each(|chunk| self.read_chunk(&chunk, &mut rows))
    }
}

fn read_checksum(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; CHECKSUM_BYTES];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
