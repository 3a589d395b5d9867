//! A minimal HTTP/1.1 client: one request out, one response body in, chunked or by length.
//!
//! A client library would cost more CPU than the server under test. Body bytes are copied once, out
//! of the read buffer. Invariant: the body is the same however it is split into reads (unit test
//! over every cut).

use crate::load::tls::TrustedRoots;
use std::io;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

/// Maximum bytes of a response head.
const LONGEST_HEAD: usize = 64 << 10;
/// Buffer capacity of one read.
const READ: usize = 64 << 10;

/// A server address: `http://HOST[:PORT][/PATH]` or `https://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether the scheme is `https`.
    pub secure: bool,
    /// `HOST:PORT`.
    pub authority: String,
    /// Path prefix of every route, without a trailing slash.
    pub path: String,
}

impl Address {
    /// Parses an address. A trailing `/v1` is optional and removed; the default port is 80 or 443.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (secure, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(format!("{scheme}:// is not spoken here; http:// and https:// are"));
            }
            None => (false, text),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let path = path.trim_end_matches('/');
        let path = path.strip_suffix("v1").unwrap_or(path).trim_end_matches('/');
        let is_plain = |c: char| c.is_ascii_graphic();
        if authority.is_empty() || !text.chars().all(is_plain) {
            return Err(format!("`{text}` is not an address like http://127.0.0.1:8000"));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if secure { 443 } else { 80 };
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let path = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { secure, authority, path })
    }

    /// The address as a URL.
    pub fn url(&self) -> String {
        let scheme = if self.secure { "https" } else { "http" };
        format!("{scheme}://{}{}", self.authority, self.path)
    }
}

/// The parsed status line and headers of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(super) status: u16,
    framing: Framing,
    pub(super) keeps: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    Chunked,
    Length(usize),
    UntilClose,
}

impl Head {
    /// Parses a head, given without its final empty line.
    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
        let status = status.ok_or_else(|| format!("`{first}` is no HTTP/1 answer"))?;
        let mut head = Self { status, framing: Framing::UntilClose, keeps: !first.starts_with("HTTP/1.0") };
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                head.framing = Framing::Chunked;
            } else if name.eq_ignore_ascii_case("content-length") && head.framing != Framing::Chunked {
                head.framing = Framing::Length(value.parse().map_err(|_| format!("a length of `{value}`"))?);
            } else if name.eq_ignore_ascii_case("connection") {
                head.keeps = !value.eq_ignore_ascii_case("close");
            }
        }
        head.keeps &= head.framing != Framing::UntilClose;
        Ok(head)
    }
}

/// Body decoder: removes chunked or length framing.
#[derive(Debug)]
pub(crate) struct Body {
    framing: Framing,
    /// Remaining bytes of the current chunk, including its trailing CRLF.
    left: usize,
    is_over: bool,
}

impl Body {
    pub(super) fn new(head: Head) -> Self {
        Self { framing: head.framing, left: 0, is_over: head.framing == Framing::Length(0) }
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Appends the payload of `raw` to `out` and returns how many bytes of `raw` were consumed.
    fn take(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<usize, String> {
        match self.framing {
            Framing::UntilClose => {
                out.extend_from_slice(raw);
                Ok(raw.len())
            }
            Framing::Length(left) => {
                let now = raw.get(..left).unwrap_or(raw);
                out.extend_from_slice(now);
                self.framing = Framing::Length(left - now.len());
                self.is_over = left == now.len();
                Ok(now.len())
            }
            Framing::Chunked => self.take_chunks(raw, out),
        }
    }

    fn take_chunks(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<usize, String> {
        let mut used = 0;
        while !self.is_over {
            let rest = raw.get(used..).unwrap_or_default();
            if self.left > 0 {
                let now = self.left.min(rest.len());
                if now == 0 {
                    break;
                }
                // The last two bytes of `left` are the CRLF, not payload.
                let text = now.min(self.left.saturating_sub(2));
                out.extend_from_slice(rest.get(..text).unwrap_or_default());
                self.left -= now;
                used += now;
                continue;
            }
            let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") else {
                if rest.len() > 1024 {
                    return Err("a chunk without a size".into());
                }
                break;
            };
            let line = std::str::from_utf8(rest.get(..end).unwrap_or_default()).unwrap_or("?");
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16).map_err(|_| format!("a chunk of `{line}` bytes"))?;
            if size == 0 {
                // Trailers are not supported, since no known server sends them; only the final CRLF
                // is left.
                if rest.len() < end + 4 {
                    break;
                }
                used += end + 4;
                self.is_over = true;
                break;
            }
            used += end + 2;
            self.left = size.checked_add(2).ok_or("a chunk larger than memory")?;
        }
        Ok(used)
    }
}

/// A byte stream, plain or under TLS.
trait Socket: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket for S {}

/// A keep-alive connection; requests on it are sequential.
pub(crate) struct Connection {
    stream: Box<dyn Socket>,
    raw: Vec<u8>,
}

fn broken(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Connection {
    /// Connects. `roots` is required for an `https` address.
    pub(super) async fn open(address: &Address, roots: Option<&TrustedRoots>) -> io::Result<Self> {
        let stream = TcpStream::connect(&address.authority).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Socket> = match roots.filter(|_| address.secure) {
            Some(roots) => Box::new(roots.over(stream, &address.authority).await?),
            None if address.secure => return Err(broken("nobody is trusted to sign for this server")),
            None => Box::new(stream),
        };
        Ok(Self { stream, raw: Vec::with_capacity(READ) })
    }

    /// Sends a complete request and reads the head of the response.
    pub(super) async fn request(&mut self, request: &[u8]) -> io::Result<Head> {
        self.raw.clear();
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        loop {
            if let Some(end) = self.raw.windows(4).position(|four| four == b"\r\n\r\n") {
                let text = String::from_utf8_lossy(self.raw.get(..end).unwrap_or_default()).into_owned();
                self.raw.drain(..end + 4);
                return Head::parse(&text).map_err(broken);
            }
            if self.raw.len() > LONGEST_HEAD || self.stream.read_buf(&mut self.raw).await? == 0 {
                return Err(broken("the connection closed before an answer"));
            }
        }
    }

    /// Appends more body bytes to `out`. Returns `false` at the end of the body.
    pub(super) async fn more(&mut self, body: &mut Body, out: &mut Vec<u8>) -> io::Result<bool> {
        if body.is_over {
            return Ok(false);
        }
        if self.raw.is_empty() {
            self.raw.reserve(READ);
            if self.stream.read_buf(&mut self.raw).await? == 0 {
                return match body.framing {
                    Framing::UntilClose => Ok(false),
                    _ => Err(broken("the connection closed in the middle of an answer")),
                };
            }
        }
        let before = self.raw.len();
        let used = body.take(&self.raw, out).map_err(broken)?;
        self.raw.drain(..used.min(before));
        if used == 0 && !body.is_over && self.stream.read_buf(&mut self.raw).await? == 0 {
            return Err(broken("the connection closed in the middle of an answer"));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(pieces: &[&[u8]]) -> (String, bool) {
        let head = Head::parse("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n").unwrap();
        let (mut body, mut out, mut raw) = (Body::new(head), Vec::new(), Vec::new());
        for piece in pieces {
            raw.extend_from_slice(piece);
            let used = body.take(&raw, &mut out).unwrap();
            raw.drain(..used);
        }
        (String::from_utf8(out).unwrap(), body.is_over)
    }

    #[test]
    fn a_body_is_the_same_however_it_arrives() {
        let whole = b"5\r\nhello\r\n1;x=y\r\n,\r\n6\r\n world\r\n0\r\n\r\n";
        assert_eq!(chunks(&[whole]), ("hello, world".into(), true));
        for cut in 0..whole.len() {
            assert_eq!(
                chunks(&[&whole[..cut], &whole[cut..]]),
                ("hello, world".into(), true),
                "cut at {cut}"
            );
        }
        let single: Vec<&[u8]> = whole.chunks(1).collect();
        assert_eq!(chunks(&single), ("hello, world".into(), true));
        assert_eq!(chunks(&[&whole[..12]]), ("hello".into(), false));
    }

    #[test]
    fn heads_say_how_the_body_ends() {
        let head = Head::parse("HTTP/1.1 429 Too Many\r\ncontent-length: 12\r\nConnection: close").unwrap();
        assert_eq!(head, Head { status: 429, framing: Framing::Length(12), keeps: false });
        assert!(!Head::parse("HTTP/1.0 200 OK").unwrap().keeps);
        assert!(Head::parse("SSH-2.0").is_err());
        assert!(Head::parse("HTTP/1.1 200 OK\r\ncontent-length: -1").is_err());
    }

    #[test]
    fn addresses() {
        let read = |text| Address::parse(text).map(|a| (a.authority, a.path));
        assert_eq!(read("http://127.0.0.1:8000"), Ok(("127.0.0.1:8000".into(), String::new())));
        assert_eq!(read("localhost:8000/v1/"), Ok(("localhost:8000".into(), String::new())));
        assert_eq!(read("http://h/api/v1"), Ok(("h:80".into(), "/api".into())));
        assert_eq!(read("https://h"), Ok(("h:443".into(), String::new())));
        assert_eq!(Address::parse("https://h/v1").unwrap().url(), "https://h:443");
        assert!(read("ftp://h").unwrap_err().contains("ftp"));
        assert!(read("http://").is_err() && read("a b:1").is_err() && read("a\r\nb:1").is_err());
    }
}
