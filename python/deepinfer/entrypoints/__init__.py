"""The classes that programs begin with."""
