"""What a loaded model costs to run: its size, its multiplications, its speed, its memory."""
