//! `kvasir chat` in a pseudo-terminal: Ctrl-C at any moment, and terminal modes after every exit
//! path.
//!
//! The chat runs on the simulated backend, whose fixed step time makes answer length predictable.
//! The tests hold the slave side open, so its modes can be read after the chat has exited.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_testkit::Random;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fd::OwnedFd,
    process::{Pid, Signal, ioctl_tiocsctty, kill_process, setsid},
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt},
    termios::{LocalModes, OptionalActions, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize},
};
use std::{
    fs,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Number of interrupts that the chat must survive.
const INTERRUPTS: u32 = 200;
/// Time limit for a chat to load, answer or exit on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Sent by a terminal for Ctrl-C.
const CTRL_C: &[u8] = b"\x03";
/// Sent by a terminal for Ctrl-D.
const CTRL_D: &[u8] = b"\x04";
/// Sent by a terminal for Ctrl-\.
const CTRL_BACKSLASH: &[u8] = b"\x1c";
/// Part of the line under a complete answer.
const WHOLE: &str = "prompt tokens cached";
/// The line under an interrupted answer.
const STOPPED: &str = "stopped";

/// A chat with its pseudo-terminal.
struct Chat {
    master: OwnedFd,
    slave: OwnedFd,
    process: Child,
    before: Termios,
    home: PathBuf,
    /// Output since the last line was sent.
    output: String,
}

impl Chat {
    /// Starts a chat and waits for its prompt.
    fn start(name: &str, step: &str, max_tokens: u32) -> Self {
        Self::start_with(name, step, max_tokens, &[])
    }

    /// Starts a chat with more options and waits for its prompt.
    fn start_with(name: &str, step: &str, max_tokens: u32, options: &[&str]) -> Self {
        let home = std::env::temp_dir().join(format!("kvasir-terminal-{}-{name}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
        tcsetwinsize(&slave, Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        // By default a terminal discards output that is not read yet when it gets Ctrl-C: the line
        // under an answer could be lost.
        let mut before = tcgetattr(&slave).unwrap();
        before.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&slave, OptionalActions::Now, &before).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command
            .args(["chat", "--backend", "sim", "--sim-preset", step, "--seed", "7"])
            .args(["--max-tokens", &max_tokens.to_string()])
            .args(options)
            .env("HOME", &home)
            .env("TERM", "xterm-256color")
            .env_remove("XDG_STATE_HOME")
            .stdin(stdio())
            .stdout(stdio())
            .stderr(stdio());
        // SAFETY: `setsid` and `ioctl` are async-signal-safe and allocate nothing.
        unsafe {
            command.pre_exec(|| {
                setsid()?;
                ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let process = command.spawn().unwrap();
        let mut chat = Self { master, slave, process, before, home, output: String::new() };
        assert!(chat.at_prompt(), "no prompt: {}", chat.output);
        chat
    }

    fn modes(&self) -> Termios {
        tcgetattr(&self.slave).unwrap()
    }

    /// Whether the line editor is reading: in raw mode, Ctrl-C raises no signal.
    fn is_raw(&self) -> bool {
        !self.modes().local_modes.contains(LocalModes::ISIG)
    }

    /// Whether all terminal modes are as before the chat.
    fn is_restored(&self) -> bool {
        let (now, before) = (self.modes(), &self.before);
        now.local_modes == before.local_modes
            && now.input_modes == before.input_modes
            && now.output_modes == before.output_modes
            && now.control_modes == before.control_modes
    }

    fn exit(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().unwrap()
    }

    fn send(&mut self, bytes: &[u8]) {
        rustix::io::write(&self.master, bytes).unwrap();
    }

    /// Types a line and submits it once the line editor shows it, so the prompt that reads Enter is
    /// the last one.
    fn send_line(&mut self, line: &str) {
        self.output.clear();
        self.send(line.as_bytes());
        // The line of a command is drawn again while its hint changes, its arguments are not.
        let shown = if line.starts_with('/') { line.rsplit(' ').next().unwrap() } else { line };
        let (began, mut typed) = (Instant::now(), Instant::now());
        while !self.output.contains(shown) && self.exit().is_none() {
            assert!(began.elapsed() < PATIENCE, "the chat hangs: {}", self.output);
            self.listen(Duration::from_millis(1));
            // A terminal discards what is typed while a prompt changes its mode: the line is deleted
            // and typed again, as a person does.
            if typed.elapsed() > Duration::from_secs(2) {
                self.send(&[&b"\x15"[..], line.as_bytes()].concat());
                typed = Instant::now();
            }
        }
        self.output.clear();
        self.send(b"\r");
    }

    fn raise(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    /// Collects output for `time`; false if the chat has exited.
    fn listen(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut wait = [PollFd::new(&self.master, PollFlags::IN)];
            if poll(&mut wait, Some(&left)) != Ok(1) {
                return self.exit().is_none();
            }
            let mut bytes = [0; 4096];
            let len = rustix::io::read(&self.master, &mut bytes).unwrap_or(0);
            self.output.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
    }

    /// Waits until `done`; false if the chat exits before.
    fn wait(&mut self, done: impl Fn(&Self) -> bool) -> bool {
        let began = Instant::now();
        while !done(self) {
            if self.exit().is_some() {
                return false;
            }
            assert!(began.elapsed() < PATIENCE, "the chat hangs: {}", self.output);
            self.listen(Duration::from_millis(1));
        }
        self.exit().is_none()
    }

    fn at_prompt(&mut self) -> bool {
        self.wait(Self::is_raw)
    }

    fn is_answered(&self) -> bool {
        self.output.contains(WHOLE) || self.output.contains(STOPPED)
    }

    /// Waits for the end of an answer and the next prompt; false if the chat exits.
    fn answered(&mut self) -> bool {
        self.wait(|chat| chat.is_answered() && chat.is_raw())
    }

    /// Whether the chat gives a complete answer.
    fn answers(&mut self) -> bool {
        self.send_line("one more");
        self.answered() && self.output.contains(WHOLE)
    }

    /// Resets the conversation to one question, so that it never fills the context.
    fn forget(&mut self) {
        let file = self.home.join("one.json");
        fs::write(&file, r#"{"messages": [{"role": "user", "content": "hello"}]}"#).unwrap();
        self.send_line(&format!("/load {}", file.display()));
        assert!(self.wait(|chat| chat.output.contains("this branch now holds") && chat.is_raw()));
    }

    /// Waits for the process to exit.
    fn ended(&mut self) -> Option<i32> {
        assert!(!self.wait(|_| false));
        self.exit().unwrap().code()
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// A random duration up to `most`.
fn up_to(most: Duration, random: &mut Random) -> Duration {
    most.mul_f64(random.below(1 << 32) as f64 / (1u64 << 32) as f64)
}

#[test]
fn no_interrupt_during_or_around_an_answer_ends_the_chat() {
    let start = || Chat::start("interrupts", "fixed:1ms", 24);
    let (mut chat, mut random) = (start(), Random::new(5));
    let ms = Duration::from_millis;
    let began = Instant::now();
    assert!(chat.answers(), "{}", chat.output);
    let mut length = began.elapsed();
    let (mut deaths, mut stopped, mut whole) = (Vec::new(), 0, 0);
    for i in 0..INTERRUPTS {
        chat.send_line("go on");
        let began = Instant::now();
        let alive = match i % 8 {
            // At the start of the answer.
            0 => chat.listen(up_to(ms(4), &mut random)),
            // At its expected end.
            1 | 2 => chat.listen(length.saturating_sub(ms(4)) + up_to(ms(8), &mut random)),
            // At its end, by the line under it.
            3 => chat.wait(Chat::is_answered),
            // Twice.
            4 => {
                chat.listen(up_to(length, &mut random));
                chat.send(CTRL_C);
                chat.listen(up_to(ms(12), &mut random))
            }
            // At the prompt after the answer.
            5 => chat.answered(),
            _ => chat.listen(up_to(length, &mut random)),
        };
        chat.send(CTRL_C);
        // The pause gives a late interrupt time to act. One read by the line editor discards the
        // line.
        if !(alive && chat.answered() && chat.listen(ms(2)) && chat.at_prompt()) {
            deaths.push((i, chat.exit().unwrap().code(), chat.is_restored()));
            chat = start();
            continue;
        }
        if chat.output.contains(STOPPED) {
            stopped += 1;
        } else {
            whole += 1;
            length = (length * 7 + began.elapsed()) / 8;
        }
        if i % 40 == 39 {
            assert!(chat.answers(), "{}", chat.output);
            chat.forget();
        }
    }
    let dead = deaths.len();
    assert!(dead == 0, "{dead} of {INTERRUPTS} interrupts ended the chat: {deaths:?}");
    assert!(stopped > 40 && whole > 20, "{stopped} answers were stopped, {whole} were not");
    assert!(chat.answers(), "{}", chat.output);
    chat.send(CTRL_D);
    assert_eq!(chat.ended(), Some(0));
    assert!(chat.is_restored(), "{:?}", chat.modes());
}

#[test]
fn the_terminal_is_restored_on_every_way_out() {
    type Leave = fn(&mut Chat);
    let ways: [(&str, i32, Leave); 6] = [
        ("quit", 0, |chat| chat.send_line("/quit")),
        ("end", 0, |chat| chat.send(CTRL_D)),
        ("term", 143, |chat| chat.raise(Signal::TERM)),
        ("hup", 129, |chat| chat.raise(Signal::HUP)),
        ("quit-signal", 131, |chat| chat.raise(Signal::QUIT)),
        ("load", 130, |chat| {
            // A blocking command: the FIFO's other end is never opened.
            let fifo = chat.home.join("fifo");
            assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
            chat.send_line(&format!("/load {}", fifo.display()));
            assert!(chat.wait(|chat| !chat.is_raw()));
            chat.listen(Duration::from_millis(100));
            chat.send(CTRL_C);
        }),
    ];
    for (name, code, leave) in ways {
        let mut chat = Chat::start(name, "fixed:1ms", 4);
        assert!(!chat.is_restored());
        leave(&mut chat);
        assert_eq!(chat.ended(), Some(code), "{name}: {}", chat.output);
        assert!(chat.is_restored(), "{name}: {:?}", chat.modes());
        chat.listen(Duration::ZERO);
        assert!(
            chat.output.rfind("\x1b[?2004l") >= chat.output.rfind("\x1b[?2004h"),
            "{name} leaves bracketed paste on: {:?}",
            chat.output
        );
    }
}

#[test]
fn a_signal_during_an_answer_restores_the_terminal() {
    for (name, code) in [("term-answer", 143), ("backslash-answer", 131)] {
        let mut chat = Chat::start(name, "fixed:50ms", 200);
        chat.send_line("go on");
        assert!(chat.wait(|chat| !chat.is_raw()));
        chat.listen(Duration::from_millis(300));
        match code {
            143 => chat.raise(Signal::TERM),
            _ => chat.send(CTRL_BACKSLASH),
        }
        assert_eq!(chat.ended(), Some(code), "{name}: {}", chat.output);
        assert!(chat.is_restored(), "{name}: {:?}", chat.modes());
    }
}

#[test]
fn a_long_prompt_shows_its_progress_and_erases_it() {
    let mut chat = Chat::start("progress", "fixed:1500ms", 2);
    chat.send_line("go on");
    assert!(chat.wait(|chat| chat.output.contains("reading ")), "{}", chat.output);
    assert!(chat.answered(), "{}", chat.output);
    let (before, behind) = chat.output.split_once(" tokens").unwrap();
    assert!(before.contains("reading ") && behind.contains(WHOLE), "{:?}", chat.output);
    assert!(behind.contains("\x1b[2K") || behind.contains("\r"), "the line is erased: {behind:?}");
}

#[test]
fn a_full_conversation_goes_on_without_its_oldest_turns() {
    let mut chat = Chat::start_with("full", "fixed:1ms", 24, &["--max-model-len", "160"]);
    let is_full = |chat: &Chat| chat.output.contains("drop the oldest");
    for round in 0..2 {
        let mut questions = 0;
        loop {
            chat.send_line("tell me more about that");
            assert!(
                chat.wait(|chat| (chat.is_answered() || is_full(chat)) && chat.is_raw()),
                "{}",
                chat.output
            );
            if is_full(&chat) {
                break;
            }
            questions += 1;
            assert!(questions < 20, "never full: {}", chat.output);
        }
        assert!(chat.output.contains("of 160 tokens"), "{}", chat.output);
        chat.output.clear();
        if round == 0 {
            // Enter agrees, and the question that did not fit is answered.
            chat.send(b"\r");
            assert!(chat.answered() && chat.output.contains(WHOLE), "{}", chat.output);
        } else {
            chat.send(b"n\r");
            assert!(chat.wait(|chat| chat.output.contains("taken back") && chat.is_raw()), "{}", chat.output);
        }
    }
    chat.send_line("/quit");
    assert_eq!(chat.ended(), Some(0));
}

#[test]
fn a_dumb_terminal_gets_no_escape_sequences() {
    let home = std::env::temp_dir().join(format!("kvasir-terminal-{}-dumb", std::process::id()));
    fs::create_dir_all(&home).unwrap();
    let input = home.join("input");
    fs::write(&input, "hello\n/stats\n/nothing\n").unwrap();
    for term in [Some("dumb"), None] {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command
            .args(["chat", "--backend", "sim", "--max-tokens", "4"])
            .env("HOME", &home)
            .env_remove("NO_COLOR")
            .stdin(fs::File::open(&input).unwrap())
            .stdout(stdio())
            .stderr(stdio());
        match term {
            Some(term) => command.env("TERM", term),
            None => command.env_remove("TERM"),
        };
        assert_eq!(command.status().unwrap().code(), Some(1), "there is no such command");
        let (mut output, mut bytes) = (String::new(), [0; 4096]);
        // The process has ended: all of its output is there.
        while poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
            == Ok(1)
        {
            let len = rustix::io::read(&master, &mut bytes).unwrap();
            output.push_str(&String::from_utf8_lossy(&bytes[..len]));
        }
        assert!(output.contains("/nothing") && !output.contains('\x1b'), "{term:?}: {output:?}");
    }
    fs::remove_dir_all(&home).unwrap();
}
