//! What a rendering may use: steps, room for values, depth.
//!
//! Bytes are counted as they are made. When the count reaches the limit, what is still there is found by a walk over
//! the variables. Values that no variable holds, in the middle of an expression, are not found so: they count from
//! their making to the end of the statement that made them (`unfinished`), and so does the text that statements
//! have written (`written`).

use super::{
    fault::{Fault, Run},
    repr::str_of,
    run::Interp,
    value::Value,
};

/// Bytes of a scope, and of a variable in it.
pub(super) const SCOPE: usize = 160;
pub(super) const VARIABLE: usize = 128;
/// Variables of this many values double the steps, of twice as many treble them. Templates go over the whole chat for
/// each message (to find the last question, or the call that a result answers), so that an honest one takes steps by
/// the square of the chat's length: some ten million for 2,000 messages, past any limit that is right for a short
/// chat. A hostile template gains little by it, since not the template brings the variables but the caller. Growing
/// in proportion keeps a long chat's time bounded all the same.
pub(super) const VALUES_PER_FUEL: u64 = 6_000;
/// Bytes that are made or copied in the time of a step.
const BYTES_PER_STEP: usize = 1024;
/// Values that are put into a list in the time of a step.
const VALUES_PER_STEP: usize = 4;

impl Interp {
    /// Takes room for a value of this size before it is made.
    pub(super) fn room(&mut self, bytes: usize) -> Run<()> {
        self.fits(bytes)?;
        self.fuel = self.fuel.saturating_sub((bytes / BYTES_PER_STEP) as u64);
        self.unfinished = self.unfinished.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.total_bytes {
            self.count_again()?;
        }
        Ok(())
    }

    /// Counts what is there. At most half of the limit may be: the other half is what can be made until the next
    /// count, so that counting does not take all the time.
    fn count_again(&mut self) -> Run<()> {
        let alive = self.walk_alive();
        self.fuel = self.fuel.saturating_sub(alive.steps as u64);
        self.bytes = alive.bytes.saturating_add(self.unfinished).saturating_add(self.written);
        if self.bytes > self.limits.total_bytes / 2 {
            let most = self.limits.total_bytes / 2;
            return Err(Fault::new(format!("values of more than {most} bytes at once")));
        }
        Ok(())
    }

    /// Runs a part after which only variables and output are left of what it made.
    pub(super) fn finishing<T>(&mut self, part: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        let before = self.unfinished;
        let out = part(self)?;
        self.unfinished = before;
        Ok(out)
    }

    /// A value that was read where it may be replaced while the reader still holds it.
    pub(super) fn held_while_read(&mut self, value: &Value) {
        self.unfinished = self.unfinished.saturating_add(value.size());
    }

    /// The largest value, in bytes.
    pub(super) fn value_bytes(&self) -> usize {
        self.limits.value_bytes
    }

    /// Whether a value may be this large. Takes no room: for what is still being made.
    pub(super) fn fits(&self, bytes: usize) -> Run<()> {
        if bytes > self.limits.value_bytes {
            return Err(Fault::new(format!("a value of more than {} bytes", self.limits.value_bytes)));
        }
        Ok(())
    }

    /// Room for a list of this many values.
    pub(super) fn room_for(&mut self, count: usize) -> Run<()> {
        self.fuel = self.fuel.saturating_sub((count / VALUES_PER_STEP) as u64);
        self.room(count.saturating_mul(std::mem::size_of::<Value>() * 2))
    }

    /// A string value, with room taken.
    pub(super) fn text(&mut self, text: impl AsRef<str>) -> Run<Value> {
        self.room(text.as_ref().len())?;
        Ok(Value::str(text))
    }

    /// One step done.
    pub(super) fn burn(&mut self) -> Run<()> {
        self.fuel = self
            .fuel
            .checked_sub(1)
            .ok_or_else(|| Fault::new(format!("the template takes more than {} steps", self.limits.fuel)))?;
        Ok(())
    }

    /// Work in one step that grows with a value's size.
    pub(super) fn work(&mut self, size: usize) -> Run<()> {
        self.fuel = self.fuel.saturating_sub(size as u64 / 64);
        self.burn()
    }

    /// Work that goes through all that a value holds.
    pub(super) fn walks(&mut self, value: &Value) -> Run<()> {
        self.work(value.size() / 16)
    }

    /// One level further in.
    pub(super) fn deeper<T>(&mut self, inner: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.burn()?;
        self.depth += 1;
        if self.depth > self.limits.depth {
            return Err(Fault::new(format!("calls and expressions nest deeper than {}", self.limits.depth)));
        }
        let out = inner(self);
        self.depth -= 1;
        out
    }

    /// The text of a value, with room taken.
    pub(super) fn str_of(&mut self, value: &Value) -> Run<String> {
        let text = str_of(value);
        self.room(text.len())?;
        Ok(text)
    }
}
