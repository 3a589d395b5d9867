//! `kvasir chat`: interactive terminal chat with the engine in the same process. Reads questions
//! and slash commands.
//!
//! Model output goes to stdout, everything else to stderr or, while a line is edited, to the terminal.

pub(crate) mod command;
pub(crate) mod conversation;
pub(crate) mod editor;
pub(crate) mod full_context;
pub(crate) mod input;
pub(crate) mod interrupt;
pub(crate) mod one_shot;
pub(crate) mod screen;
pub(crate) mod statistics;
pub(crate) mod terminal;
pub(crate) mod turn;

use crate::chat::command::{COMMANDS, Command};
use crate::chat::conversation::{Conversation, user};
use crate::chat::editor::Keys;
use crate::chat::full_context::{ADVICE, Remedy, fill, remedy};
use crate::chat::input::{Input, Line};
use crate::chat::interrupt::Interrupts;
use crate::chat::screen::Screen;
use crate::chat::statistics::{Tally, plural};
use crate::chat::terminal::Terminal;
use crate::chat::turn::{NoTurn, Turn};
use crate::io::failure::Failure;
use crate::startup::Started;
use crate::startup::ready_engine::EngineFacts;
use kvasir_sample::Sampling;
use kvasir_serve::request::{ChatRequest, IgnoredFields, Reader, UnknownFields};
use serde_json::{Map, Value, json};
use std::{
    fs,
    io::{ErrorKind, Write},
    path::Path,
    process::ExitCode,
};
use tokio::runtime::Runtime;

/// Settings that `/set` lists, each with the meaning of its absence.
const SETTINGS: &[(&str, &str)] = &[
    ("temperature", "the model's; 0 is greedy, up to 100"),
    ("top_p", "the model's"),
    ("top_k", "the model's"),
    ("min_p", "the model's"),
    ("repetition_penalty", "the model's"),
    ("presence_penalty", "the model's"),
    ("frequency_penalty", "the model's"),
    ("max_tokens", "what the context leaves"),
    ("seed", "a new one for every answer"),
    ("stop", "none"),
    ("stop_regex", "none"),
    ("reasoning_effort", "the model's; none, minimal, low, medium, high, xhigh, max"),
    ("enable_thinking", "the model's; true or false"),
    ("thinking_token_budget", "none"),
    ("response_format", "text"),
];

/// Maximum consecutive rounds of tool calls before control returns to the user.
const MOST_ROUNDS: usize = 16;

/// Starts an engine for a model path, or for the initial model.
pub(crate) type Start = Box<dyn Fn(Option<&Path>) -> Result<Started, Failure>>;

/// Initial configuration of a chat.
pub(crate) struct Beginning {
    pub(crate) start: Start,
    pub(crate) system: Option<String>,
    /// Request fields besides `messages`.
    pub(crate) fields: Map<String, Value>,
    /// Whether input history is stored.
    pub(crate) remember: bool,
    /// Key bindings of the line editor.
    pub(crate) keys: Keys,
}

/// A running chat.
pub(crate) struct Chat {
    start: Start,
    started: Started,
    runtime: Runtime,
    conversation: Conversation,
    fields: Map<String, Value>,
    input: Input,
    screen: Screen,
    /// `None` if stdin is a pipe: signals keep their default actions.
    interrupts: Option<Interrupts>,
    tally: Tally,
    /// Whether any request was rejected; sets the exit code of scripts.
    failed: bool,
}

/// Error message of a command or question, shown to the user.
type Stop = Result<(), String>;

/// Why a question has no answer.
enum NoAnswer {
    /// The conversation exceeds the context.
    Full(String),
    Refused(String),
}

impl Chat {
    /// Loads the model.
    pub(crate) fn begin(beginning: Beginning) -> Result<Self, Failure> {
        let Beginning { start, system, fields, remember, keys } = beginning;
        check_fields(&fields).map_err(Failure::usage)?;
        Ok(Self {
            started: start(None)?,
            start,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(Failure::failed)?,
            conversation: Conversation::new(system.as_deref()),
            fields,
            input: Input::new(remember, keys)?,
            screen: Screen::new(),
            interrupts: None,
            tally: Tally::default(),
            failed: false,
        })
    }

    /// Runs the read-eval loop until the user leaves or input ends.
    pub(crate) fn run(mut self) -> Result<ExitCode, Failure> {
        let failed = |error| Failure::failed(format!("terminal: {error}"));
        // Held until the chat returns. The listener starts first, so a signal always restores the
        // terminal.
        let _terminal = if self.input.is_person() {
            self.interrupts = Some(Interrupts::listen().map_err(failed)?);
            let terminal = Terminal::hold().map_err(failed)?;
            self.greet();
            Some(terminal)
        } else {
            None
        };
        while let Some(text) = self.listen("› ")? {
            let done = if is_command(&text) {
                match Command::parse(&text) {
                    Ok(Command::Quit) => break,
                    Ok(command) => self.run_command(command)?,
                    Err(why) => Err(why),
                }
            } else {
                self.send_question(&text)?
            };
            if let Err(why) = done {
                self.failed = true;
                self.screen.wrong(&why);
            }
            self.screen.space();
        }
        Ok(if self.failed && !self.input.is_person() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// The next non-empty text; `None` at the end.
    fn listen(&mut self, prompt: &str) -> Result<Option<String>, Failure> {
        loop {
            match self.input.read(prompt)? {
                Line::Text(text) if text.trim().is_empty() => {}
                Line::Text(text) => return Ok(Some(text)),
                Line::Nothing => self.screen.note("Ctrl-D or /quit leaves"),
                Line::End => return Ok(None),
            }
        }
    }

    /// Asks the user for a tool's result; `None` if declined.
    fn result_of(&mut self, name: &str) -> Result<Option<String>, Failure> {
        loop {
            match self.input.read(&format!("result of {name}: "))? {
                Line::Text(text) if text.trim().is_empty() => {
                    self.screen.note("Ctrl-C takes the question back")
                }
                Line::Text(text) => return Ok(Some(text)),
                Line::Nothing | Line::End => return Ok(None),
            }
        }
    }

    fn greet(&self) {
        self.about();
        self.screen.note("/help lists the commands · Alt-Enter begins a line · Ctrl-C stops an answer");
        self.screen.space();
    }

    fn about(&self) {
        let Started { name, facts: EngineFacts { backend, slots, max_len, .. }, .. } = &self.started;
        self.screen.entry(name, &format!("on {backend} · context {max_len} tokens · pool of {slots}"));
    }

    /// Sends a question; on failure it is removed again. If the context is full, the user is offered to drop
    /// the oldest turns.
    fn send_question(&mut self, text: &str) -> Result<Stop, Failure> {
        let mut before = self.conversation.messages().len();
        self.conversation.push(user(text));
        loop {
            let why = match self.answer(before)? {
                Ok(()) => return Ok(Ok(())),
                Err(NoAnswer::Refused(why)) => why,
                Err(NoAnswer::Full(why)) => match self.make_room(why)? {
                    Ok(dropped) => {
                        before = before.saturating_sub(dropped);
                        continue;
                    }
                    Err(why) => why,
                },
            };
            self.conversation.truncate(before);
            return Ok(Err(why));
        }
    }

    /// Drops the oldest turns of a conversation that exceeds the context, if the user agrees; returns the number of
    /// messages. `why` is what the model refused it with.
    fn make_room(&mut self, why: String) -> Result<Result<usize, String>, Failure> {
        let max_len = self.started.facts.max_len;
        let max_tokens = self.fields.get("max_tokens").and_then(Value::as_u64).map(|n| n as usize);
        let count = |turns: usize| {
            let mut body = self.fields.clone();
            body.insert("messages".into(), self.conversation.without_oldest(turns).into());
            self.started.app.count_chat_tokens(&body)
        };
        let (turns, tokens) = match remedy(&self.conversation, max_len as usize, max_tokens, count) {
            Err(error) => return Ok(Err(error.message)),
            Ok(Remedy::TooLong { tokens }) if tokens < max_len as usize => {
                return Ok(Err(format!("{why}; /set max_tokens N requests fewer")));
            }
            Ok(Remedy::TooLong { tokens }) => {
                let alone = format!("the question alone has {tokens} of {max_len} tokens");
                return Ok(Err(format!(
                    "{alone}; shorten it, or give a larger --max-model-len or --kv-capacity"
                )));
            }
            Ok(Remedy::Drop { turns, tokens }) => (turns, tokens),
        };
        let full = fill(tokens, max_len);
        if !self.input.is_person() {
            return Ok(Err(format!("{full}; {ADVICE}")));
        }
        self.screen.note(&full);
        let oldest = if turns == 1 { "turn".into() } else { plural(turns as u64, "turn") };
        if self.input.confirm(&format!("drop the oldest {oldest}?"))? {
            return Ok(Ok(self.conversation.drop_oldest(turns)));
        }
        Ok(Err(format!("the question is taken back; {ADVICE}")))
    }

    /// Generates answers and tool call rounds until the model is done.
    fn answer(&mut self, before: usize) -> Result<Result<(), NoAnswer>, Failure> {
        for _ in 0..MOST_ROUNDS {
            let mut body = self.fields.clone();
            body.insert("messages".into(), self.conversation.messages().into());
            let answering = self.interrupts.as_ref().map(Interrupts::answering);
            let prefill = self.started.prefill.as_ref();
            let turn = Turn::take(&self.started.app, &body, &mut self.screen, answering, prefill);
            let turn = match self.runtime.block_on(turn) {
                Ok(turn) => turn,
                Err(NoTurn::Refused(error)) if error.code == Some("context_length_exceeded") => {
                    return Ok(Err(NoAnswer::Full(error.message)));
                }
                Err(NoTurn::Refused(error)) => return Ok(Err(NoAnswer::Refused(error.message))),
                Err(NoTurn::Screen(error)) => return Err(Failure::failed(format!("stdout: {error}"))),
            };
            let line = self.tally.count(&turn);
            self.screen.note(&line);
            if turn.is_empty() && turn.ended.is_none() {
                self.conversation.truncate(before);
                return Ok(Ok(()));
            }
            let tokens = turn.ended.as_ref().map(|ended| ended.prompt + ended.tokens);
            let (message, calls) = turn.message(self.conversation.messages().len());
            self.conversation.push(message);
            if let Some(tokens) = tokens {
                self.conversation.set_context(tokens);
            }
            if calls.is_empty() {
                return Ok(Ok(()));
            }
            for (id, name) in calls {
                let Some(result) = self.result_of(&name)? else {
                    let why = format!("no result of {name}: the question is taken back");
                    return Ok(Err(NoAnswer::Refused(why)));
                };
                self.conversation.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
            }
        }
        Ok(Ok(()))
    }

    fn run_command(&mut self, command: Command) -> Result<Stop, Failure> {
        // File access may block (a FIFO, a slow disk).
        let may_block =
            matches!(command, Command::Model(_) | Command::Load(_) | Command::Save(..) | Command::Tools(_));
        let _phase = self.interrupts.as_ref().filter(|_| may_block).map(Interrupts::command);
        match command {
            Command::Help => self.help(),
            Command::System(None) => {
                self.screen.note(self.conversation.system().unwrap_or("there are no standing instructions"));
            }
            Command::System(Some(text)) => {
                let text = if text == "-" { "" } else { &text };
                self.conversation.set_system(text);
                let what = if text.is_empty() { "taken away" } else { "set" };
                self.screen.note(&format!("standing instructions {what}, from the next question on"));
            }
            Command::Fork(back) => return Ok(self.fork(back)),
            Command::Branch(None) => self.list_branches(),
            Command::Branch(Some(number)) => {
                return Ok(self.conversation.switch(number).map(|()| self.list_branches()));
            }
            Command::Rewind(turns) => return Ok(self.rewind(turns)),
            Command::Retry => {
                return match self.conversation.rewind(1) {
                    Ok(question) => self.send_question(&question),
                    Err(refusal) => Ok(Err(refusal)),
                };
            }
            Command::Clear => {
                let cleared = plural(self.conversation.clear() as u64, "message");
                self.screen.note(&format!("{cleared} forgotten"));
            }
            Command::New => {
                let before = self.conversation.overview().0;
                let number = self.conversation.begin();
                self.screen.note(&format!("branch {number} is empty; /branch {before} goes back"));
            }
            Command::Set(None) => self.list_fields(),
            Command::Set(Some((name, value))) => return Ok(self.set(name, &value)),
            Command::Tools(file) => return Ok(self.offer(file.as_deref())),
            Command::Save(file, overwrites) => return Ok(self.save(&file, overwrites)),
            Command::Load(file) => return Ok(self.load(&file)),
            Command::Stats => {
                for (name, text) in self.tally.lines(self.conversation.context(), self.started.facts.max_len)
                {
                    self.screen.entry(name, &text);
                }
            }
            Command::Model(path) => return Ok(self.model(path.as_deref())),
            // Handled by the loop in `run`.
            Command::Quit => {}
        }
        Ok(Ok(()))
    }

    fn help(&self) {
        let entry = |(name, arguments, what): &(&str, &str, &str)| {
            (format!("{:<21}", format!("{name} {arguments}")), (*what).to_owned())
        };
        self.screen.entries(&COMMANDS.iter().map(entry).collect::<Vec<_>>());
    }

    fn fork(&mut self, back: usize) -> Stop {
        let before = self.conversation.overview().0;
        let number = self.conversation.fork(back)?;
        let messages = self.conversation.len();
        self.screen.note(&format!("branch {number}, after {messages} messages; /branch {before} goes back"));
        Ok(())
    }

    fn rewind(&mut self, turns: usize) -> Stop {
        let question = self.conversation.rewind(turns)?;
        self.screen.note(&format!("taken back from “{}” on", first_line(&question)));
        Ok(())
    }

    fn list_branches(&self) {
        let (here, branches) = self.conversation.overview();
        for (number, (count, last)) in (1..).zip(branches) {
            let mark = if number == here { "→" } else { " " };
            let last =
                if count > 0 { format!(", the last “{}”", first_line(&last)) } else { String::new() };
            self.screen
                .entry(&format!("{mark} {number}"), &format!("{}{last}", plural(count as u64, "question")));
        }
    }

    fn list_fields(&self) {
        for (name, what) in SETTINGS {
            match self.fields.get(*name) {
                Some(value) => self.screen.entry(name, &value.to_string()),
                None => self.screen.entry(name, &format!("– {what}")),
            }
        }
        let others = self.fields.iter().filter(|(name, _)| SETTINGS.iter().all(|(known, _)| known != name));
        others.for_each(|(name, value)| self.screen.entry(name, &value.to_string()));
    }

    /// Sets a field of later requests; `-` removes it. Unchanged on error.
    fn set(&mut self, name: String, value: &str) -> Stop {
        let mut fields = self.fields.clone();
        match value {
            "-" => fields.remove(&name),
            _ => fields.insert(name.clone(), serde_json::from_str(value).unwrap_or_else(|_| value.into())),
        };
        check_fields(&fields)?;
        self.fields = fields;
        match self.fields.get(&name) {
            Some(value) => self.screen.entry(&name, &value.to_string()),
            None => self.screen.note(&format!("{name} is as the model has it")),
        }
        Ok(())
    }

    fn offer(&mut self, file: Option<&Path>) -> Stop {
        let Some(file) = file else {
            self.fields.remove("tools");
            self.screen.note("no tools are offered");
            return Ok(());
        };
        self.fields = with_tools(&self.fields, file)?;
        let tools = self.fields.get("tools").and_then(Value::as_array).map_or(0, Vec::len);
        self.screen.note(&format!("{} offered", plural(tools as u64, "tool")));
        Ok(())
    }

    /// Writes the branch to a file. An existing one is overwritten on request only.
    fn save(&self, file: &Path, overwrites: bool) -> Stop {
        if self.conversation.messages().is_empty() {
            return Err("the conversation is empty".into());
        }
        let text = format!("{:#}\n", self.conversation.to_json());
        let name = file.display();
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).create_new(!overwrites);
        let written = options.open(file).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => format!("{name} exists; /save {name}! overwrites it"),
            _ => format!("{name}: {error}"),
        })?;
        let what = if overwrites { "overwritten with" } else { "written with" };
        self.screen.note(&format!("{name} {what} {}", plural(self.conversation.len() as u64, "message")));
        Ok(())
    }

    fn load(&mut self, file: &Path) -> Stop {
        let named = |error: String| format!("{}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
        self.conversation.load(&text).map_err(named)?;
        let count = plural(self.conversation.len() as u64, "message");
        self.screen.note(&format!("this branch now holds {count} from {}", file.display()));
        Ok(())
    }

    fn model(&mut self, path: Option<&Path>) -> Stop {
        if path.is_some() {
            self.started = (self.start)(path).map_err(|failure| failure.to_string())?;
            self.conversation.forget_contexts();
        }
        self.about();
        Ok(())
    }
}

/// Whether a text is a command: a slash and a letter, or `/?`.
fn is_command(text: &str) -> bool {
    text.strip_prefix('/').is_some_and(|rest| rest.starts_with(char::is_alphabetic) || rest == "?")
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// Validates the fields before they are used in a request.
fn check_fields(fields: &Map<String, Value>) -> Result<(), String> {
    for owned in ["messages", "stream", "stream_options", "model", "n", "logprobs", "top_logprobs"] {
        if fields.contains_key(owned) {
            return Err(format!("{owned} is not for the terminal to set"));
        }
    }
    let mut body = fields.clone();
    body.insert("messages".into(), json!([user("?")]));
    // Unknown names are typos here, so they are rejected.
    let ignored = IgnoredFields::default().with_rule(UnknownFields::Refuse);
    let read = ChatRequest::read(&Reader::new(&body, &ignored), &Sampling::default(), u32::MAX);
    read.map(|_| ()).map_err(|error| error.message)
}

/// Adds the tools of a JSON file: a list in API format.
pub(crate) fn with_tools(fields: &Map<String, Value>, file: &Path) -> Result<Map<String, Value>, String> {
    let named = |error: String| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
    let tools: Value = serde_json::from_str(&text).map_err(|error| named(error.to_string()))?;
    let mut fields = fields.clone();
    fields.insert("tools".into(), tools);
    check_fields(&fields).map_err(named)?;
    Ok(fields)
}
