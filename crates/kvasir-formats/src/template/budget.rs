//! What a rendering may use: steps, room for values, depth.

use super::{
    fault::{Fault, Run},
    repr::str_of,
    run::Interp,
    value::Value,
};

impl Interp {
    /// Takes room for a value of this size before it is made.
    pub(super) fn room(&mut self, bytes: usize) -> Run<()> {
        self.bytes = self.bytes.saturating_add(bytes);
        self.fits(bytes)?;
        if self.bytes > self.limits.total_bytes {
            return Err(Fault::new(format!("values of more than {} bytes in all", self.limits.total_bytes)));
        }
        Ok(())
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
