//! Progress on stderr, so that what is printed can be piped: a bar in a terminal; elsewhere a line now and then, so that a log
//! shows what a long run is at.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, ProgressBar, ProgressStyle};

/// Off a terminal, the least time between two lines.
const BETWEEN: Duration = Duration::from_secs(20);

/// So many of so many are done.
pub struct Progress {
    bar: ProgressBar,
    /// Whether a line tells how many are done.
    counts: bool,
    /// When the last line was printed, where there is no terminal.
    line: Option<Mutex<Instant>>,
}

#[allow(dead_code, reason = "no example has a use for all of it")]
impl Progress {
    pub fn new(len: u64) -> Progress {
        Progress::styled(len, "{bar:30} {pos}/{len} [{elapsed}] {msg}")
    }

    /// With a template of its own for terminals.
    pub fn styled(len: u64, template: &str) -> Progress {
        let bar = ProgressBar::new(len);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        let line = bar.is_hidden().then(|| Mutex::new(Instant::now()));
        Progress { bar, counts: true, line }
    }

    /// Of so many seconds, which a line leaves to its message.
    pub fn timed(seconds: u64, template: &str) -> Progress {
        Progress { counts: false, ..Progress::styled(seconds, template) }
    }

    pub fn set_message(&self, message: impl Into<String>) {
        self.bar.set_message(message.into());
        self.tell();
    }

    pub fn inc(&self, more: u64) {
        self.bar.inc(more);
        self.tell();
    }

    pub fn set_position(&self, position: u64) {
        self.bar.set_position(position);
        self.tell();
    }

    pub fn set_length(&self, len: u64) {
        self.bar.set_length(len);
    }

    /// Nothing new, but time has passed.
    pub fn tick(&self) {
        self.bar.tick();
        self.tell();
    }

    /// A line on stderr that stays.
    pub fn println(&self, text: &str) {
        self.suspend(|| eprintln!("{text}"));
    }

    /// Prints without the bar in the way.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    pub fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }

    fn tell(&self) {
        let Some(line) = &self.line else { return };
        let mut last = line.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= BETWEEN {
            *last = Instant::now();
            eprintln!("{}", self.line());
        }
    }

    fn line(&self) -> String {
        let (done, message) = (self.bar.position(), self.bar.message());
        let all = self
            .bar
            .length()
            .filter(|&all| self.counts && all > 0)
            .map_or(String::new(), |all| format!("{done}/{all} "));
        format!("{all}[{}] {message}", FormattedDuration(self.bar.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_the_bar_would() {
        let progress = Progress::new(12);
        progress.inc(3);
        progress.set_message("a layer");
        assert_eq!(progress.line(), "3/12 [00:00:00] a layer");
        assert_eq!(Progress::new(0).line(), "[00:00:00] ");
        assert_eq!(Progress::timed(60, "{msg}").line(), "[00:00:00] ");
    }

    #[test]
    fn a_line_comes_when_it_is_time() {
        let progress = Progress { bar: ProgressBar::hidden(), counts: true, line: Some(Mutex::new(Instant::now())) };
        let since = |progress: &Progress| progress.line.as_ref().unwrap().lock().unwrap().elapsed();
        progress.inc(1);
        assert!(since(&progress) < BETWEEN);
        let Some(long_ago) = Instant::now().checked_sub(2 * BETWEEN) else { return };
        *progress.line.as_ref().unwrap().lock().unwrap() = long_ago;
        progress.inc(1);
        assert!(since(&progress) < BETWEEN, "a line was printed");
    }
}
