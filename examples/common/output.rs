//! Lines to stdout that end the program, not panic, where nobody reads on.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write, stdout};

/// Prints a line. A closed pipe is the reader's wish to end; anything else that goes wrong is told.
pub fn line(text: Arguments<'_>) {
    if let Err(error) = writeln!(stdout().lock(), "{text}") {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(0);
        }
        eprintln!("error: cannot write to stdout: {error}");
        std::process::exit(1);
    }
}
