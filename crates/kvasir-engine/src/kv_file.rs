//! A file of K/V rows: the tokens of a sequence, and the rows of its leading whole blocks as a pool
//! stores them. Knows no path. [`Engine::import_kv`](crate::Engine::import_kv) puts its chunks into
//! a pool.
//!
//! Layout, with integers in little endian:
//!
//! | part | content |
//! |---|---|
//! | start | `KVASIRKV`, version: u32, bytes of the header: u32 |
//! | header | model: u64, prefix salt: u64, bytes of a slot: u64, block size, chunk size, final length, rows, tokens: u32 each, name of the layout, tokens: u32 each |
//! | checksum | XXH64 of start and header |
//! | chunk, repeated | rows of `chunk size` tokens, of fewer at the end; XXH64 of them, seeded with the header's checksum plus their first token |
//!
//! A file is exactly as long as its header says. All sizes are checked against the length of the
//! file before memory is allocated. Checksums detect damage, not forgery: the folder of the files
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
/// Bytes before the header.
const START: usize = 16;
/// Bytes of the fixed fields of the header.
const FIXED: usize = 3 * 8 + 5 * 4 + 4;
/// Maximum bytes of a header: a name, and the tokens of the longest contexts.
const MAX_HEADER: u32 = 1 << 28;
/// Bytes of the rows of a chunk; one block if a block is larger.
const CHUNK_BYTES: usize = 32 << 20;
/// Maximum bytes of the rows of a chunk.
const MAX_CHUNK_BYTES: usize = 1 << 30;
const CHECKSUM: usize = 8;

/// What a file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvFileHeader {
    /// A hash of all that decides the numbers of a row: weights and arithmetic.
    pub model: u64,
    /// Layout of the rows.
    pub layout: KvLayout,
    /// Tokens of a block.
    pub block_size: u32,
    /// Length that the sequence could reach, on which its RoPE may depend.
    pub final_len: u32,
    /// The model's prefix salt for this length.
    pub prefix_salt: u64,
    /// All tokens.
    pub tokens: Vec<Token>,
    /// Number of leading tokens with rows, a multiple of the block size.
    pub rows: u32,
}

impl KvFileHeader {
    /// Tokens of a chunk.
    pub fn chunk_size(&self) -> u32 {
        let block_bytes = self.layout.slot_bytes.saturating_mul(self.block_size as usize).max(1);
        let blocks = (CHUNK_BYTES / block_bytes).max(1);
        u32::try_from(blocks).unwrap_or(u32::MAX).saturating_mul(self.block_size)
    }

    /// The ranges of tokens of the chunks.
    pub fn chunks(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let (rows, size) = (self.rows, self.chunk_size().max(1));
        (0..rows).step_by(size as usize).map(move |start| start..start.saturating_add(size).min(rows))
    }

    /// Start and header in their stored form, without their checksum.
    fn to_bytes(&self) -> Vec<u8> {
        let name = self.layout.format.as_bytes();
        let len = FIXED + name.len() + 4 * self.tokens.len();
        let mut bytes = Vec::with_capacity(START + len);
        bytes.extend(MAGIC);
        bytes.extend([VERSION, len as u32].map(u32::to_le_bytes).as_flattened());
        let long = [self.model, self.prefix_salt, self.layout.slot_bytes as u64];
        bytes.extend(long.map(u64::to_le_bytes).as_flattened());
        let counts = [
            self.block_size,
            self.chunk_size(),
            self.final_len,
            self.rows,
            self.tokens.len() as u32,
            name.len() as u32,
        ];
        bytes.extend(counts.map(u32::to_le_bytes).as_flattened());
        bytes.extend(name);
        bytes.extend(self.tokens.iter().flat_map(|token| token.to_le_bytes()));
        bytes
    }

    /// Reads the header behind the start; `None` if it contradicts itself.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED)?;
        let long = |at: usize| Some(u64::from_le_bytes(fixed.get(8 * at..)?.first_chunk().copied()?));
        let count = |at: usize| Some(u32::from_le_bytes(fixed.get(24 + 4 * at..)?.first_chunk().copied()?));
        let (name, tokens) = rest.split_at_checked(count(5)? as usize)?;
        if tokens.len() != (count(4)? as usize).checked_mul(4)? {
            return None;
        }
        let token = |bytes: &[u8]| Some(Token::from_le_bytes(bytes.first_chunk().copied()?));
        let format = std::str::from_utf8(name).ok()?.to_owned();
        let header = Self {
            model: long(0)?,
            prefix_salt: long(1)?,
            layout: KvLayout { format, slot_bytes: usize::try_from(long(2)?).ok()? },
            block_size: count(0)?,
            final_len: count(2)?,
            rows: count(3)?,
            tokens: tokens.chunks_exact(4).map(token).collect::<Option<_>>()?,
        };
        let chunk_bytes = header.layout.slot_bytes.checked_mul(header.chunk_size() as usize)?;
        let is_whole = header.block_size > 0 && header.rows.is_multiple_of(header.block_size);
        let agrees = header.chunk_size() == count(1)? && header.rows as usize <= header.tokens.len();
        (is_whole && agrees && chunk_bytes <= MAX_CHUNK_BYTES).then_some(header)
    }

    /// Bytes of the whole file.
    fn file_len(&self, header: u64) -> u64 {
        let rows = u64::from(self.rows).saturating_mul(self.layout.slot_bytes as u64);
        header.saturating_add(rows).saturating_add((CHECKSUM * self.chunks().count()) as u64)
    }
}

/// Why a file of K/V rows cannot be restored.
#[derive(Debug)]
#[non_exhaustive]
pub enum KvFileError {
    /// It cannot be read or written.
    Io(io::Error),
    /// It does not begin as these files do.
    Foreign,
    /// It has another version than the one that can be read.
    Version(u32),
    /// It is shorter than its header says.
    Truncated {
        /// Its length in bytes.
        found: u64,
        /// The length that it should have.
        expected: u64,
    },
    /// A checksum or a size is wrong at this byte.
    Damaged {
        /// Offset of the part.
        at: u64,
    },
    /// Its rows are those of another model, or of another arithmetic.
    OtherModel,
    /// Its rows have another layout.
    OtherLayout {
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
            Self::Foreign => write!(f, "it is no file of K/V rows"),
            Self::Version(version) => {
                write!(f, "it has version {version} of the format, and version {VERSION} can be read")
            }
            Self::Truncated { found, expected } => write!(f, "truncated: {found} of {expected} bytes"),
            Self::Damaged { at } => write!(f, "damaged: the part at byte {at} fails its check"),
            Self::OtherModel => write!(f, "its K and V are of another model, or of another arithmetic"),
            Self::OtherLayout { file, pool } => {
                write!(f, "its K and V are stored as `{file}`, those of this server as `{pool}`")
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

/// Writes a file of K/V rows.
pub struct KvFileWriter<W> {
    file: W,
    checksum: u64,
    slot_bytes: usize,
    /// The chunks that are not complete.
    chunks: Vec<Range<u32>>,
    /// Hash of the rows of the first of them, and how many bytes are written.
    hasher: Xxh64,
    written: usize,
    total: u64,
}

impl<W: Write> KvFileWriter<W> {
    /// Writes the header.
    pub fn new(mut file: W, header: &KvFileHeader) -> Result<Self, KvFileError> {
        let bytes = header.to_bytes();
        let checksum = xxh64(&bytes, 0);
        file.write_all(&bytes)?;
        file.write_all(&checksum.to_le_bytes())?;
        let mut chunks: Vec<_> = header.chunks().collect();
        chunks.reverse();
        let hasher = Xxh64::new(checksum);
        let (slot_bytes, total) = (header.layout.slot_bytes, (bytes.len() + CHECKSUM) as u64);
        Ok(Self { file, checksum, slot_bytes, chunks, hasher, written: 0, total })
    }

    /// Appends rows, which may end anywhere in a chunk. Rows beyond the header's number are an error.
    pub fn write(&mut self, mut rows: &[u8]) -> Result<(), KvFileError> {
        while !rows.is_empty() {
            let chunk = self.chunks.last().ok_or_else(|| io::Error::other("too many rows"))?;
            let rest = self.slot_bytes * chunk.len() - self.written;
            let (part, behind) = rows.split_at(rest.min(rows.len()));
            self.file.write_all(part)?;
            self.hasher.update(part);
            (self.written, self.total, rows) =
                (self.written + part.len(), self.total + part.len() as u64, behind);
            if part.len() == rest {
                self.file.write_all(&self.hasher.digest().to_le_bytes())?;
                self.total += CHECKSUM as u64;
                self.chunks.pop();
                let start = self.chunks.last().map_or(0, |chunk| chunk.start);
                self.hasher.reset(self.checksum.wrapping_add(start.into()));
                self.written = 0;
            }
        }
        Ok(())
    }

    /// Flushes the file and returns its length in bytes. Missing rows are an error.
    pub fn finish(mut self) -> Result<u64, KvFileError> {
        if !self.chunks.is_empty() {
            return Err(io::Error::other("rows are missing").into());
        }
        self.file.flush()?;
        Ok(self.total)
    }
}

/// Reads a file of K/V rows.
pub struct KvFile<R> {
    file: R,
    header: KvFileHeader,
    checksum: u64,
    /// Offset of the first chunk.
    begin: u64,
    len: u64,
}

impl<R: Read + Seek> KvFile<R> {
    /// Reads and checks the header, and the length of the file.
    pub fn open(mut file: R) -> Result<Self, KvFileError> {
        let found = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut start = [0; START];
        let readable = found.min(START as u64) as usize;
        file.read_exact(&mut start[..readable])?;
        if !start.starts_with(&MAGIC[..readable.clamp(1, MAGIC.len())]) {
            return Err(KvFileError::Foreign);
        }
        let [version, len] = [8, 12].map(|at| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&start[at..at + 4]);
            u32::from_le_bytes(bytes)
        });
        if readable == START && version != VERSION {
            return Err(KvFileError::Version(version));
        }
        let begin = START as u64 + u64::from(len) + CHECKSUM as u64;
        if readable < START || found < begin {
            return Err(KvFileError::Truncated { found, expected: begin.max(START as u64 + 1) });
        }
        if len > MAX_HEADER {
            return Err(KvFileError::Damaged { at: 12 });
        }
        let mut bytes = start.to_vec();
        bytes.resize(START + len as usize, 0);
        file.read_exact(&mut bytes[START..])?;
        let checksum = read_checksum(&mut file)?;
        let header = KvFileHeader::from_bytes(&bytes[START..]);
        let header = header.filter(|_| xxh64(&bytes, 0) == checksum);
        let header = header.ok_or(KvFileError::Damaged { at: START as u64 })?;
        let expected = header.file_len(begin);
        if found < expected {
            return Err(KvFileError::Truncated { found, expected });
        }
        if found > expected {
            return Err(KvFileError::Damaged { at: expected });
        }
        Ok(Self { file, header, checksum, begin, len: found })
    }

    /// What it holds.
    pub fn header(&self) -> &KvFileHeader {
        &self.header
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// Whether its rows can be written to a pool with this layout and block size, of this model.
    pub fn check(&self, model: u64, layout: &KvLayout, block_size: u32) -> Result<(), KvFileError> {
        let header = &self.header;
        if header.layout != *layout || header.block_size != block_size {
            let text = |layout: &KvLayout, block_size: u32| {
                // The shapes of all layers follow.
                let name = layout.format.split(" [").next().unwrap_or_default();
                format!("{name}, {} bytes per token, blocks of {block_size}", layout.slot_bytes)
            };
            let (file, pool) = (text(&header.layout, header.block_size), text(layout, block_size));
            return Err(KvFileError::OtherLayout { file, pool });
        }
        if header.model == model { Ok(()) } else { Err(KvFileError::OtherModel) }
    }

    /// Reads the rows of one of the header's chunks into `rows`.
    pub fn read(&mut self, chunk: &Range<u32>, rows: &mut Vec<u8>) -> Result<(), KvFileError> {
        let slot_bytes = self.header.layout.slot_bytes;
        let before = u64::from(chunk.start / self.header.chunk_size()) * CHECKSUM as u64;
        let at = self.begin + u64::from(chunk.start) * slot_bytes as u64 + before;
        self.file.seek(SeekFrom::Start(at))?;
        rows.resize(slot_bytes * chunk.len(), 0);
        self.file.read_exact(rows)?;
        let checksum = xxh64(rows, self.checksum.wrapping_add(chunk.start.into()));
        if read_checksum(&mut self.file)? == checksum { Ok(()) } else { Err(KvFileError::Damaged { at }) }
    }

    /// Checks all chunks.
    pub fn verify(&mut self) -> Result<(), KvFileError> {
        let mut rows = Vec::new();
        self.header.chunks().try_for_each(|chunk| self.read(&chunk, &mut rows))
    }
}

fn read_checksum(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; CHECKSUM];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
