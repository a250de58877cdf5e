//! The whole screen of a terminal, which is restored however the program ends.

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{event, execute, queue};
use std::io::{self, Write};
use std::time::Duration;

/// A screen that this program owns until the value is dropped.
pub struct Screen(());

/// An input of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Quit the program.
    Quit,
    /// Redraw: requested by key, or the size of the screen has changed.
    Redraw,
}

impl Screen {
    /// Takes over the terminal of standard output.
    ///
    /// # Errors
    /// Standard output is no terminal, or the terminal cannot be set up.
    pub fn take() -> io::Result<Screen> {
        enable_raw_mode()?;
        let screen = Screen(());
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Returns the numbers of columns and lines.
    pub fn size() -> (usize, usize) {
        let (columns, lines) = size().unwrap_or((80, 24));
        (usize::from(columns.max(1)), usize::from(lines.max(1)))
    }

    /// Shows these lines; lines beyond the end of the screen are omitted.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let (_, height) = Screen::size();
        // Written at once, to avoid flicker.
        let mut frame = Vec::new();
        for (number, line) in lines.iter().take(height).enumerate() {
            queue!(frame, MoveTo(0, number as u16))?;
            frame.extend_from_slice(line.as_bytes());
            queue!(frame, Clear(ClearType::UntilNewLine))?;
        }
        if lines.len() < height {
            queue!(frame, MoveTo(0, lines.len() as u16), Clear(ClearType::FromCursorDown))?;
        }
        let mut out = anstream::stdout().lock();
        out.write_all(&frame)?;
        out.flush()
    }

    /// Waits for an input for at most `longest`.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn key(&self, longest: Duration) -> io::Result<Option<Key>> {
        if !event::poll(longest)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Release => None,
            Event::Key(key) => match key.code {
                KeyCode::Char('q' | 'Q') | KeyCode::Esc => Some(Key::Quit),
                KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Quit),
                KeyCode::Char('l' | ' ') => Some(Key::Redraw),
                _ => None,
            },
            Event::Resize(..) => Some(Key::Redraw),
            _ => None,
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Errors are ignored: the terminal may be gone.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}
