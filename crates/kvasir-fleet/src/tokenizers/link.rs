//! [`Link`]: the front's end of the socket of a tokenizer process.
//!
//! Each socket has a task that reads and a task that writes, so a process that does not read its
//! socket does not delay other processes.

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

/// A message of a process, or the error after which no message follows.
pub(super) struct Received {
    pub(super) tokenizer: usize,
    pub(super) generation: u32,
    pub(super) message: Result<FromTokenizer, FrameError>,
}

/// Dropping it closes the socket, and the process exits.
#[derive(Debug)]
pub(super) struct Link {
    /// Header of the last frame that was sent.
    header: Header,
    frames: UnboundedSender<Vec<u8>>,
}

impl Link {
    /// Starts the tasks of `socket`. `header` identifies the process and must have number 0.
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

    /// Queues a message. Returns false if it is too large.
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
