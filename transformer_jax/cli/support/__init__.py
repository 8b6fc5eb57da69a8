"""Parts of several commands: groups of flags, lines of input, pictures, samples."""
