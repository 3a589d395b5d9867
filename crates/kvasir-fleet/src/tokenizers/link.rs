//! [`Link`]: the front's end of the socket of a tokenizer process.
//!
//! One task reads the socket and one writes it, so a process that does not read delays no other.

use crate::message::Header;
use crate::tokenizers::frame::{self, FrameError};
use crate::tokenizers::job::FromTokenizer;
use serde::Serialize;
use std::{io, os::unix};
use tokio::{
    io::{AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
};

/// A message of a process, or why none follows.
pub(super) struct Received {
    pub(super) tokenizer: usize,
    pub(super) generation: u32,
    pub(super) message: Result<FromTokenizer, FrameError>,
}

/// The front's end of a process's socket. Dropping it makes the process exit.
#[derive(Debug)]
pub(super) struct Link {
    /// Header of the last frame.
    header: Header,
    frames: UnboundedSender<Vec<u8>>,
}

impl Link {
    /// Reads and writes `socket`. `header` names the process; its number is 0.
    pub(super) fn open(
        socket: unix::net::UnixStream,
        header: Header,
        received: UnboundedSender<Received>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let (reader, writer) = UnixStream::from_std(socket)?.into_split();
        let (frames, queue) = unbounded_channel();
        tokio::spawn(read_messages(reader, header, received));
        tokio::spawn(write_frames(writer, queue));
        Ok(Self { header, frames })
    }

    /// Queues a message. False if it is too large.
    pub(super) fn send(&mut self, message: &impl Serialize) -> bool {
        let header = Header { number: self.header.number + 1, ..self.header };
        let Some(frame) = frame::encode(header, message) else { return false };
        self.header = header;
        // Fails if the process has ended, which is reported separately.
        let _ = self.frames.send(frame);
        true
    }
}

async fn read_messages(reader: OwnedReadHalf, mut header: Header, received: UnboundedSender<Received>) {
    let mut reader = BufReader::new(reader);
    loop {
        header.number += 1;
        let message = frame::read(&mut reader, header).await;
        let is_last = message.is_err();
        let (tokenizer, generation) = (header.replica as usize, header.generation);
        if received.send(Received { tokenizer, generation, message }).is_err() || is_last {
            return;
        }
    }
}

async fn write_frames(mut writer: OwnedWriteHalf, mut queue: UnboundedReceiver<Vec<u8>>) {
    while let Some(frame) = queue.recv().await {
        if writer.write_all(&frame).await.is_err() {
            return;
        }
    }
}
