# Draws on an SVG page that is transparent and readable on white and on dark: text is in a grey whose contrast
# is above 4.3 on both, text on a colour in black or white. Colours are those of Okabe and Ito, which most
# colour-blind people can tell apart.
package Svg;
use strict;
use warnings;

our $INK = '#767676';
# What belongs together has one colour: gathers move parameters, reductions gradients, AdamW updates states.
our %COLOR = (parameters => '#0072b2', gradients => '#e69f00', master => '#009e73', first => '#3db893',
    second => '#7bd1b6', activations => '#999999', gather => '#0072b2', reduce => '#e69f00',
    update => '#009e73', part => '#009e73', forward => '#56b4e9', backward => '#cc79a7',
    read => '#f0e442', write => '#d55e00');
our @SERIES = ('#0072b2', '#e69f00', '#009e73', '#cc79a7');    # ranks, stages

my ($width, $height, @parts);

sub page {
    my ($title, $note);
    ($width, $height, $title, $note) = @_;
    @parts = ();
    text(0, 18, $title, bold => 1, size => 15);
    text(0, 37, $note);
}

# Options: anchor (start, middle, end), size, bold, fill, turn (degrees around x, y)
sub text {
    my ($x, $y, $text, %o) = @_;
    $text =~ s/&/&amp;/g;
    $text =~ s/</&lt;/g;
    my $more = '';
    $more .= qq( text-anchor="$o{anchor}") if $o{anchor};
    $more .= qq( font-size="$o{size}") if $o{size};
    $more .= ' font-weight="600"' if $o{bold};
    $more .= qq( fill="$o{fill}") if $o{fill};
    $more .= sprintf(' transform="rotate(%d %.1f %.1f)"', $o{turn}, $x, $y) if $o{turn};
    push @parts, sprintf('<text x="%.1f" y="%.1f"%s>%s</text>', $x, $y, $more, $text);
}

# Options: label, in the middle if it fits; ghost: only a pale outline
sub rect {
    my ($x, $y, $w, $h, $fill, %o) = @_;
    my $more = $o{ghost} ? qq( fill-opacity=".12" stroke="$fill" stroke-opacity=".45") : '';
    push @parts, sprintf('<rect x="%.1f" y="%.1f" width="%.2f" height="%.1f" fill="%s"%s/>', $x, $y, $w, $h,
        $fill, $more);
    my $label = $o{label} // '';
    my $ink = $o{ghost} ? $INK : $fill eq '#0072b2' ? '#fff' : '#000';
    text($x + $w / 2, $y + $h / 2 + 4, $label, anchor => 'middle', size => 11, fill => $ink)
        if $label ne '' && 6.8 * length($label) <= $w;
}

# Options: width, opacity, dash; points: [x, y]
sub line {
    my ($points, $color, %o) = @_;
    my $path = join(' ', map { sprintf('%.1f,%.1f', @$_) } @$points);
    my $more = sprintf(' stroke-width="%s"', $o{width} // 1);
    $more .= qq( stroke-opacity="$o{opacity}") if $o{opacity};
    $more .= qq( stroke-dasharray="$o{dash}") if $o{dash};
    push @parts, qq(<polyline points="$path" fill="none" stroke="$color"$more/>);
}

# Coloured squares with what they mean, in a row from x on: [color, text, ghost]
sub legend {
    my ($x, $y, @entries) = @_;
    for my $entry (@entries) {
        rect($x, $y - 10, 11, 11, $entry->[0], ghost => $entry->[2]);
        text($x + 16, $y, $entry->[1]);
        $x += 34 + 7.4 * length($entry->[1]);
    }
}

# Returns about n round steps from 0 to most.
sub ticks {
    my ($most, $n) = @_;
    my $step = 10**int(log($most / $n) / log(10) + 100 - 100);
    $step /= 10 while $step > $most / $n;
    my ($best) = grep { $most / $_ <= $n } map { $step * $_ } 1, 2, 5, 10;
    return map { $_ * $best } 0 .. int($most / $best + 1e-9);
}

# Pale lines with figures at the left for values from 0 to most; most is at the top, 0 at the bottom.
sub y_axis {
    my ($x, $w, $top, $bottom, $most, $unit) = @_;
    for my $tick (ticks($most, 5)) {
        my $y = $bottom - ($bottom - $top) * $tick / $most;
        line([[$x, $y], [$x + $w, $y]], $INK, opacity => $tick ? .3 : 1);
        text($x - 6, $y + 4, $tick, anchor => 'end');
    }
    text($x - 6, $top - 9, $unit, anchor => 'end');
}

sub x_axis {
    my ($x, $w, $y, $most, $unit) = @_;
    line([[$x, $y], [$x + $w, $y]], $INK);
    for my $tick (ticks($most, 8)) {
        line([[$x + $w * $tick / $most, $y], [$x + $w * $tick / $most, $y + 4]], $INK);
        text($x + $w * $tick / $most, $y + 17, $tick, anchor => 'middle');
    }
    text($x + $w, $y + 33, $unit, anchor => 'end');
}

sub finish {
    print qq(<svg xmlns="http://www.w3.org/2000/svg" viewBox="-4 0 $width $height" width="$width" ),
        qq(height="$height" font-family="system-ui,-apple-system,'Segoe UI',Arial,sans-serif" ),
        qq(font-size="12.5" fill="$INK">\n),
        join("\n", @parts), "\n</svg>\n";
}

1;
